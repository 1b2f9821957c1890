"""May this daemon program the kernel, or does another one serve this network namespace?

Two proxies would remove each other's rules for ever. So the second one lists and plans, answers
probes, and writes nothing until the first has ended. It holds no one up: it is healthy, as the
node's Services work, so a rollout that starts new pods before it ends old ones goes on.

How the other one is known:

    ours          by its claim (`claim`); its end is noticed at once
    upstream's    by its metrics server, which names its mode at /proxyMode. It is asked every
                  second while we wait. One that has none, or elsewhere, is not noticed, nor is
                  what is not root's or our user's: any process may answer like it
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from kubeproxy.go.hostport import split_host_port
from kubeproxy.kernel.listeners import listens_for_root
from kubeproxy.logs import get_logger
from kubeproxy.run.claim import Claim, NoClaim, try_claim, wait_for_claim
from kubeproxy.run.presence import running_proxies

logger = get_logger(__name__)

WAIT_FLAG = "wait-for-other-proxy"
METRICS_PORT = 10249
"""Where upstream's metrics server listens unless it is configured otherwise."""
ASK_SECONDS = 1.0
REMIND_SECONDS = 600.0
_MODES = frozenset({"iptables", "ipvs", "nftables", "userspace"})
_LONGEST_ANSWER = 4096
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})


class Admission:
    """The right to program the kernel, or the wait for it."""

    def __init__(self, metrics_address: str, *, waits: bool) -> None:
        """Without `waits` another proxy is only reported."""
        host, port = split_host_port(metrics_address) if metrics_address else ("", "0")
        self._own = ("127.0.0.1" if host in _WILDCARDS else host, int(port))
        self._waits = waits
        self._claim: Claim | None = None
        self._is_over = asyncio.Event()
        self.other = ""
        """What runs here already, in words; empty if nothing does."""

    @property
    def is_waiting(self) -> bool:
        return bool(self.other) and self._waits and not self._is_over.is_set()

    async def look(self) -> None:
        """Take the right, or find out who has it. Call before any server of ours listens."""
        try:
            self._claim = try_claim()
            if self._claim is None:
                self.other = ", ".join(running_proxies()) or "kube-proxy"
        except NoClaim as error:
            logger.v(2).info("Other proxies cannot be kept from starting", err=str(error))
        if not self.other:
            self.other = await _find_upstream(self._places())

    async def wait(self, has_metrics_port: Callable[[], bool]) -> None:
        """Return when no other proxy runs. `has_metrics_port`: does our own server listen?"""
        if not self.is_waiting:
            return
        reminder = asyncio.create_task(self._remind())
        try:
            await self._take_claim()
            while await _find_upstream(self._places(without_own=has_metrics_port())):
                await asyncio.sleep(ASK_SECONDS)
        finally:
            reminder.cancel()
        self._is_over.set()
        logger.info("The other kube-proxy has ended; taking over", other=self.other)

    async def sleep(self, seconds: float) -> None:
        """Sleep, but while we wait for our turn no longer than that."""
        if not self.is_waiting:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_over.wait()

    def has_successor(self) -> bool:
        """Does another proxy wait for our end?"""
        return self._claim is not None and self._claim.has_successor()

    def close(self) -> None:
        """Give the right up."""
        if self._claim is not None:
            self._claim.close()

    async def _take_claim(self) -> None:
        if self._claim is not None:
            return
        try:
            self._claim = await wait_for_claim()
        except NoClaim as error:
            logger.error(error, "The claim is not held by a kube-proxy; going on without it")

    async def _remind(self) -> None:
        while True:
            message = "Another kube-proxy runs in this network namespace; waiting until it ends"
            logger.info(message, other=self.other)
            await asyncio.sleep(REMIND_SECONDS)

    def _places(self, *, without_own: bool = False) -> list[tuple[str, int]]:
        """Where upstream's metrics server may be: where ours is to be, or at the usual place."""
        places = dict.fromkeys((self._own, ("127.0.0.1", METRICS_PORT)))
        return [p for p in places if p[1] and not (without_own and p == self._own)]


async def _find_upstream(places: list[tuple[str, int]]) -> str:
    """Describe the kube-proxy whose metrics server is at one of these places, if there is one."""
    for host, port in places:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                mode = await _mode_at(host, port)
            if mode and listens_for_root(host, port):
                return f"kube-proxy in {mode} mode (its metrics server is at port {port})"
    return ""


async def _mode_at(host: str, port: int) -> str:
    """What /proxyMode answers there, if it is a mode."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET /proxyMode HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = (await reader.readexactly(_LONGEST_ANSWER)).decode(errors="replace")
    except asyncio.IncompleteReadError as end:  # as it should be: the answer is short
        answer = end.partial.decode(errors="replace")
    finally:
        writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    is_fine = head.partition("\r\n")[0].endswith(" 200 OK")
    return body.strip() if is_fine and body.strip() in _MODES else ""
