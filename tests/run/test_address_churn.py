"""The host's addresses while they change faster than the kernel can list them."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.host import Host
from tests.support.waiting import within_limit

from kubeproxy.api.manifests import ManifestSource
from kubeproxy.errors import Busy
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import Message
from kubeproxy.kernel.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from kubeproxy.run import prepare, serving

RTM_GETADDR = 22


@pytest.mark.parametrize("interrupted", [0, 1, 4])
def test_an_interrupted_dump_is_read_again(
    monkeypatch: pytest.MonkeyPatch, interrupted: int
) -> None:
    dump = interrupt(monkeypatch, interrupted)
    with NetlinkSocket(NETLINK_ROUTE) as route:
        assert route.dump(RTM_GETADDR, b"\0" * 8, what="list addresses")
    assert len(dump) == interrupted + 1


def test_a_dump_that_is_always_interrupted_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, 1_000)
    with NetlinkSocket(NETLINK_ROUTE) as route, pytest.raises(Busy, match="kept changing"):
        route.dump(RTM_GETADDR, b"\0" * 8, what="list addresses")


def interrupt(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Set the kernel's mark of an inconsistent dump on the replies of some dumps."""
    replies, dumps = NetlinkSocket._replies, list[int]()

    def marked(self: NetlinkSocket, seq: int, what: str) -> Iterator[Message]:
        dumps.append(seq)
        flag = codec.NLM_F_DUMP_INTR if len(dumps) <= times else 0
        for reply in replies(self, seq, what):
            yield replace(reply, flags=reply.flags | flag)

    monkeypatch.setattr(NetlinkSocket, "_replies", marked)
    return dumps


async def test_the_start_waits_for_addresses_that_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [Busy("churn", errno=errno.EINTR)] * 3

    def addresses(**_: object) -> dict[Family, tuple[str, ...]]:
        if failures:
            raise failures.pop()
        return {Family.IPV4: ("192.0.2.7",), Family.IPV6: ()}

    monkeypatch.setattr(prepare, "host_addresses", addresses)
    monkeypatch.setattr(prepare, "RETRY_SECONDS", 0.001)
    assert await prepare._node_ips(None, ManifestSource(tmp_path)) == ("192.0.2.7",)


async def test_addresses_that_cannot_be_watched_are_read_until_they_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a free descriptor there is no socket to watch them with."""
    changes, failures = list[None](), [Busy("netlink", errno=errno.EMFILE)] * 3
    is_watching = asyncio.Event()

    async def watch(changed: Callable[[], None], **_: object) -> None:
        if failures:
            raise failures.pop()
        is_watching.set()
        await asyncio.Future[None]()

    monkeypatch.setattr(serving, "watch_addresses", watch)
    follow = asyncio.create_task(serving.follow_addresses(lambda: changes.append(None), 0.0))
    await within_limit(is_watching.wait())
    follow.cancel()
    assert len(changes) == 3
    assert caplog.text.count("Cannot watch the host's addresses") == 1


WEB = """
kind: Service
metadata: {name: web}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080}]}
---
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.5]}]
"""


@contextmanager
def churn(host: Host) -> Iterator[None]:
    """Thousands of addresses, some of which come and go all the time."""
    with host.network.inside():
        lines = [f"addr add 10.{n // 250}.{n % 250}.1/32 dev lo" for n in range(4_000)]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    lines = [
        f"addr {verb} 10.200.{n}.1/32 dev lo" for n in range(100) for verb in ("add", "del")
    ] * 50
    ended = threading.Event()

    def run() -> None:
        with host.network.inside():
            pause = 0.0
            while not ended.wait(pause):
                began = time.monotonic()
                batch = ["ip", "-force", "-batch", "-"]
                subprocess.run(batch, input="\n".join(lines), text=True, check=False)
                # On any machine a third of the time is left to read the list in.
                pause = (time.monotonic() - began) / 2

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.kernel
def test_the_daemon_starts_and_serves_while_addresses_change(host: Host) -> None:
    (host.manifests / "web.yaml").write_text(WEB)
    with churn(host):
        process = host.start("--proxy-mode=nftables")
        host.until(lambda: "10.96.0.10" in host.tables(), "the first sync")
        (host.manifests / "web.yaml").write_text(WEB.replace("10.96.0.10", "10.96.0.11"))
        host.until(lambda: "10.96.0.11" in host.tables(), "a change")
    assert host.stop(process) == 0
    assert "Traceback" not in host.log
