"""The running parts of the iptables mode in a kernel: start, canary, failing tools, switching."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable
from pathlib import Path

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.engine_kit import FakeClock, RecordedDrifts, RecordedRounds
from tests.support.waiting import FOR_THE_LOCK, limit, until, until_async

from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.kernel.nfacct.table import Nfacct
from kubeproxy.kernel.sysctl import ensure_sysctl, read_sysctl
from kubeproxy.modes.iptables.check import check
from kubeproxy.modes.iptables.cleanup import cleanup
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.names import INVALID_COUNTER, LOCALHOST_COUNTER
from kubeproxy.modes.iptables.options import Features, Options
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.rules.text import TableText, parse_save
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.sync.engine import Engine

pytestmark = pytest.mark.kernel

ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"


def using(variant: str, sync_period_seconds: float = 30.0) -> Options:
    """Options that insist on one variant of the tools."""
    return Options(sync_period_seconds=sync_period_seconds, tools=ToolOptions(variant=variant))


def engine_of(backend: IptablesBackend, on: NodeFacts | None = None) -> Engine:
    engine = Engine(
        backend,
        on or node(backend.family),
        clock=FakeClock(),
        listener=RecordedRounds(),
    )
    engine.pipeline.store.set_service(service(node_port=30080, affinity_seconds=60))
    found = [endpoint("10.244.1.1"), endpoint("10.244.2.2")]
    engine.pipeline.store.set_slice(endpoint_slice(endpoints=found))
    return engine


async def saved(tables: Xtables) -> tuple[TableText, ...]:
    return parse_save("".join([await tables.save(name) for name in ("filter", "nat", "mangle")]))


@pytest.mark.parametrize("variant", ["nft", "legacy"])
async def test_starting_prepares_the_host(variant: str) -> None:
    """Localhost may be routed, the counters exist, and the tool's version is known."""
    with scratch_namespace():
        ensure_sysctl(ROUTE_LOCALNET, 0)
        backend = IptablesBackend(Family.IPV4, using(variant))
        await backend.start(node())
        assert read_sysctl(ROUTE_LOCALNET) == "1"
        assert backend.options.features == Features()
        with Nfacct() as nfacct:
            assert nfacct.find(INVALID_COUNTER) is not None
        assert backend.packet_count(LOCALHOST_COUNTER) == 0
        assert backend.packet_count("no such counter") is None
        assert backend.tables.is_nft is (variant == "nft")


@pytest.mark.parametrize(
    ("family", "options", "cidrs"),
    [
        (Family.IPV6, Options(), ()),
        (Family.IPV4, Options(localhost_node_ports=False), ()),
        (Family.IPV4, Options(), ("192.0.2.0/24",)),
    ],
)
async def test_localhost_is_not_routed_needlessly(
    family: Family, options: Options, cidrs: tuple[str, ...]
) -> None:
    """Without node ports at 127.0.0.0/8 the parameter is left alone."""
    with scratch_namespace():
        ensure_sysctl(ROUTE_LOCALNET, 0)
        await IptablesBackend(family, options).start(node(family, node_port_cidrs=cidrs))
        assert read_sysctl(ROUTE_LOCALNET) == "0"


async def test_liberal_tcp_is_found_out_at_start() -> None:
    """The kernel parameter decides, whichever program set it."""
    with scratch_namespace():
        ensure_sysctl("net/netfilter/nf_conntrack_tcp_be_liberal", 1)
        backend = IptablesBackend(Family.IPV4, Options())
        await backend.start(node())
        assert backend.options.features.is_tcp_liberal


async def test_both_families_are_checked() -> None:
    """A family that is switched off is named; one that works raises nothing."""
    with scratch_namespace():
        await check(tuple(Family), Options())
        ensure_sysctl("net/ipv6/conf/all/disable_ipv6", 1)
        await check((Family.IPV4,), Options())
        with pytest.raises(Unsupported, match="iptables is not available on this host : IPv6"):
            await check((Family.IPV6,), Options())


async def test_no_tools_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match='install the package "iptables"'):
        await check((Family.IPV4,), Options())


@pytest.mark.parametrize("variant", ["nft", "legacy"])
async def test_a_flush_is_noticed_and_repaired(variant: str) -> None:
    """Another program flushes all tables; within an interval everything is back as it was."""
    with scratch_namespace():
        backend = IptablesBackend(Family.IPV4, using(variant, sync_period_seconds=0.2))
        engine = engine_of(backend)
        await backend.start(engine.pipeline.node)
        drifts = RecordedDrifts()
        watching = asyncio.create_task(backend.watch(drifts))

        def has_canary() -> Awaitable[bool]:
            return backend.tables.has_chain("filter", "KUBE-PROXY-CANARY")

        try:
            async with limit():
                await until_async(has_canary)
                assert (await engine.round()).failure_text == ""
                before = await saved(backend.tables)
                flush = "".join(f"*{t}\nCOMMIT\n" for t in ("mangle", "nat", "filter"))
                subprocess.run(
                    [f"iptables-{variant}-restore", *FOR_THE_LOCK],
                    input=flush.encode(),
                    check=True,
                )
                # Sizes may be noticed first; without a repair the canary follows.
                await until(lambda: any("KUBE-PROXY-CANARY" in drift for drift in drifts))
                engine.report_drift(next(d for d in drifts if "KUBE-PROXY-CANARY" in d))
                report = await engine.round()
                assert report.failure_text == ""
                assert "KUBE-PROXY-CANARY" in report.drift
                await until_async(has_canary)
                assert await saved(backend.tables) == before
        finally:
            watching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watching


async def test_clean_up_of_both_families() -> None:
    """After a run of both families nothing of ours is left, and no problem is reported."""
    with scratch_namespace():
        for family in Family:
            backend = IptablesBackend(family, Options())
            engine = Engine(
                backend,
                node(family),
                clock=FakeClock(),
                listener=RecordedRounds(),
            )
            await backend.start(engine.pipeline.node)
            assert (await engine.round()).failure_text == ""
        assert await cleanup() == []
        for family in Family:
            left = {
                chain
                for table in await saved(Xtables(family, ToolOptions()))
                for chain in table.policies
                if chain.startswith("KUBE-")
            }
            assert left == {"KUBE-FIREWALL"}
        assert await cleanup() == []


class Wrapped:
    """An iptables-restore in front of the real one that can be made to fail."""

    def __init__(self, folder: Path, script: str) -> None:
        path = folder / "iptables-restore"
        path.write_text(f'#!/bin/sh\n{script}\nexec /usr/sbin/iptables-restore "$@"\n')
        path.chmod(0o755)


async def test_a_failing_tool_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restores that fail for a while are reported; the first that works brings the whole state."""
    broken = tmp_path / "broken"
    fail = f'echo restore >> {broken}; echo "no luck" >&2; exit 3'
    Wrapped(tmp_path, f'if [ "$1" != --version ] && [ -e {broken} ]; then {fail}; fi')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin")
    with scratch_namespace():
        backend = IptablesBackend(Family.IPV4, Options())
        engine = engine_of(backend)
        await backend.start(engine.pipeline.node)
        for number in range(1, 101):
            name = f"default/s{number}"
            engine.pipeline.store.set_service(service(name, cluster_ip=f"10.96.1.{number}"))
        broken.touch()
        report = await engine.round()
        assert not report.is_success
        assert "no luck" in report.error
        assert report.refused == ()
        assert broken.read_text().count("restore") <= 3
        engine.pipeline.store.set_service(service("default/late", cluster_ip="10.96.0.99"))
        assert not (await engine.round()).is_success
        broken.unlink()
        assert (await engine.round()).is_success
        grown = await saved(backend.tables)
    with scratch_namespace():
        fresh = IptablesBackend(Family.IPV4, Options())
        engine = engine_of(fresh)
        for number in range(1, 101):
            name = f"default/s{number}"
            engine.pipeline.store.set_service(service(name, cluster_ip=f"10.96.1.{number}"))
        engine.pipeline.store.set_service(service("default/late", cluster_ip="10.96.0.99"))
        await fresh.start(engine.pipeline.node)
        assert (await engine.round()).is_success
        assert await saved(fresh.tables) == grown
