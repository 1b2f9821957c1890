"""A running daemon is inspected: `kpctl` computes from its answers what the daemon has."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.host import Host
from tests.support.served import WEB, until_programmed, until_serving, write

from kpctl.snapshot.bundle import read_bundle, write_bundle
from kpctl.snapshot.client import Client, NotRunning
from kpctl.snapshot.live import read_live
from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.modes.base import AnyChange

pytestmark = pytest.mark.kernel


@pytest.fixture(params=["nftables", "iptables", "userspace"])
def running(host: Host, request: pytest.FixtureRequest) -> Host:
    write(host, "web.yaml", WEB)
    host.start(f"--proxy-mode={request.param}")
    until_serving(host)
    host.until(host.socket.exists, "the socket")
    return host


async def differences(host: Host, snapshot: Snapshot, family: Family) -> list[AnyChange]:
    """What the kernel holds against what the snapshot wants. Sockets are their process's own."""
    pipeline, backend = snapshot.pipelines[family], snapshot.backends[family]
    found: list[AnyChange] = []
    with host.network.inside():
        for sink in (sink for sink in backend.sinks if sink.name != "sockets"):
            pipeline.resync(sink, await sink.read())
            found += pipeline.changes(sink)
    await backend.close()
    return found


def test_the_wanted_items_are_computed_from_what_the_daemon_shows(running: Host) -> None:
    snapshot = read_live(running.socket)
    for family in Family:
        assert not asyncio.run(differences(running, snapshot, family))
    assert snapshot.status is not None
    assert snapshot.status.node == "worker-a"


def test_one_service_is_asked_for_by_name(running: Host) -> None:
    (name,) = read_live(running.socket).names()
    snapshot = read_live(running.socket, name)
    assert snapshot.is_partial
    assert snapshot.names() == [name]
    assert not read_live(running.socket, ServiceName("no", "such")).names()


def test_a_bundle_holds_what_the_daemon_shows(running: Host, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    live = read_live(running.socket)
    assert write_bundle(live, path) == 1
    offline = read_bundle(path)
    assert offline.held == live.held
    assert list(offline.plans()) == list(live.plans())


def test_only_what_changed_is_named(running: Host) -> None:
    with closing(Client(running.socket)) as client:
        assert client.changes().is_reset
        assert client.changes("another-process.1").is_reset
        mark = client.changes().mark
        assert not client.changes(mark).names
        write(running, "web.yaml", WEB.replace("10.96.0.10", "10.96.0.11"))
        running.until(lambda: client.changes(mark).names, "the change")
        changes = client.changes(mark)
        assert not changes.is_reset
        assert [str(name) for name in changes.names] == ["shop/web"]


WITHOUT_A_JOURNAL = """
import sys
from kubeproxy.inspection.journal import Journal
del Journal.__init__
Journal.__new__ = None  # whatever makes one fails
from kubeproxy.cli import main
sys.exit(main())
"""


def test_without_the_socket_nothing_is_written_down(host: Host) -> None:
    write(host, "web.yaml", WEB)
    program = (sys.executable, "-c", WITHOUT_A_JOURNAL)
    host.start("--proxy-mode=nftables", "--inspection-socket=", program=program)
    until_programmed(host, "10.96.0.10")
    assert not host.socket.exists()


def test_a_proxy_that_does_not_run_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match=r"no kube-proxy answers at .*--socket"):
        read_live(tmp_path / "none")
