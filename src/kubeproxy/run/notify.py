"""What the service manager of a plain host is notified of: ready, status, and still alive.

Why: systemd's `Type=notify` starts what depends on us once Services work, and `WatchdogSec=`
restarts a process whose event loop stands still. Promise: without NOTIFY_SOCKET nothing happens at
all, and no failure of the notification is an error of the proxy. The protocol is one datagram of
`NAME=value` lines, see sd_notify(3).

The watchdog is fed from the event loop, and only while `is_alive` holds: a loop that is blocked
feeds nothing, and neither does one whose syncs no longer succeed, as /livez would report it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, MutableMapping

from kubeproxy.logs import get_logger

logger = get_logger(__name__)

_FEEDS_PER_TIMEOUT = 2


class Notifier:
    """Sends notifications to the service manager, if there is one."""

    def __init__(self, address: str = "", *, watchdog_seconds: float = 0) -> None:
        """`address` is a path, or an abstract name that starts with @; empty for no manager."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._pause_seconds = watchdog_seconds / _FEEDS_PER_TIMEOUT if address else 0.0

    def ready(self, status: str) -> None:
        """Report that everything works now."""
        self._send(f"READY=1\nSTATUS={status}")

    async def feed_watchdog(self, is_alive: Callable[[], bool]) -> None:
        """Feed the watchdog for ever, as long as `is_alive`. Return at once if there is none."""
        while self._pause_seconds:
            if is_alive():
                self._send("WATCHDOG=1")
            else:
                logger.error(None, "Syncs do not succeed; the service manager will restart us")
            await asyncio.sleep(self._pause_seconds)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.setblocking(False)
                connection.sendto(text.encode(), self._address)
        except OSError as error:
            logger.v(2).info("Cannot notify the service manager", err=str(error))


def take_notifier(environment: MutableMapping[str, str], pid: int) -> Notifier:
    """Return the notifier that the environment describes, and remove it from there.

    Tools that we run would otherwise speak for us.
    """
    address = environment.pop("NOTIFY_SOCKET", "")
    timeout, owner = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    if not address.startswith(("/", "@")):
        return Notifier()
    seconds = 0.0
    if owner in ("", str(pid)):
        with contextlib.suppress(ValueError):
            seconds = max(int(timeout or 0), 0) / 1e6
    return Notifier(address, watchdog_seconds=seconds)
