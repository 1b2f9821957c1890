"""A host without memory for netlink's messages: one call of a proxy fails with ENOBUFS, by number.

For the kernel of this machine and for guests.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

from tests.support.cut_proxy import Create, Proxy, Rules, add_address

from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import KernelError
from kubeproxy.kernel.netlink import socket as netlink

_FEWEST = 5


class Scarcity:
    """Fails one system call of a netlink socket, by number; counts them all."""

    def __init__(self, fail_at: int = -1) -> None:
        self._fail_at = fail_at
        self.count = -1000
        """Below 0 while nothing fails: until the proxy has started."""

    def pass_by(self) -> None:
        self.count += 1
        if self.count - 1 == self._fail_at:
            raise OSError(errno.ENOBUFS, "no buffer space available")


class ScarceSocket:
    """A netlink socket on a host without memory for its messages."""

    def __init__(self, real: socket.socket, scarcity: Scarcity) -> None:
        self._real = real
        self._scarcity = scarcity

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def send(self, data: bytes) -> int:
        self._scarcity.pass_by()
        return self._real.send(data)

    def recv_into(self, view: memoryview) -> int:
        self._scarcity.pass_by()
        return self._real.recv_into(view)


def fail_everywhere(create: Create, rules: Rules, *, step: int = 1) -> list[str]:
    """Fail the proxy's calls one by one (or every so many) and return what went wrong.

    `rules` reads all that the kernel holds of it: in the end the same as if no call had failed.
    """
    opened, scarcity = netlink._open, Scarcity()

    def run() -> list[str]:
        with scratch_namespace():
            add_address()
            return asyncio.run(_live(create, rules, scarcity))

    # The sockets of a run ask for the scarcity of that run.
    netlink._open = lambda protocol: ScarceSocket(opened(protocol), scarcity)  # type: ignore[assignment, return-value]
    try:
        wanted = run()
        places = scarcity.count
        wrong = [f"only {places} places"] if places < _FEWEST else []
        for place in range(0, places, step):
            scarcity = Scarcity(place)
            found = run()
            if found != wanted:
                lines = sorted(set(found) ^ set(wanted)) or ["another order"]
                wrong.append(f"call {place} of {places}: {lines[:5]}")
    finally:
        netlink._open = opened
    return wrong


async def _live(create: Create, rules: Rules, scarcity: Scarcity) -> list[str]:
    """From nothing over one state to another, each as often as it takes."""
    proxy = Proxy(create)
    await proxy.start()
    scarcity.count = 0
    for step in (proxy.first, proxy.second):
        step()
        for _ in range(3):
            try:
                await proxy.try_to_sync()
            except KernelError:
                continue
            break
    assert proxy.engine.flows_owed == 0
    found = rules()
    await proxy.backend.close()
    return found
