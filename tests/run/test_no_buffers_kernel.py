"""No buffer space at any one call to netlink: a round fails, or a search, and is repeated."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest
from tests.run.test_kill_kernel import MODES
from tests.support.cut_proxy import Proxy, add_address

from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import KernelError
from kubeproxy.kernel.netlink import socket as netlink

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1800)]


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


async def live(mode: str, scarcity: Scarcity) -> list[str]:
    """From nothing over one state to another, each as often as it takes."""
    create, rules = MODES[mode]
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


@pytest.mark.parametrize("mode", ["nftables", "iptables-nft"])
def test_no_buffer_space_at_any_call(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = netlink._open
    scarcity = Scarcity()

    def run() -> list[str]:
        monkeypatch.setattr(netlink, "_open", lambda p: ScarceSocket(opened(p), scarcity))
        with scratch_namespace():
            add_address()
            return asyncio.run(live(mode, scarcity))

    wanted = run()
    places = scarcity.count
    assert places > 10
    for place in range(places):
        scarcity = Scarcity(place)
        assert run() == wanted, f"call {place} of {places}"
