"""What a change costs does not grow with the cluster: counted in calls, bytes and items."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.fake_xtables import FakeXtables

from kpctl.bench import iptables as bench
from kpctl.bench.records import Size
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.iptables.scaffold import SCOPE
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.sync.engine import Engine


class Cluster:
    """A proxy over a number of services, on a fake kernel."""

    def __init__(self, services: int) -> None:
        self.tables = FakeXtables(is_nft=False)
        backend = IptablesBackend(Family.IPV4, Options())
        backend.netfilter = NetfilterSink(self.tables, SCOPE)
        self.engine = Engine(
            backend,
            node(),
            clock=FakeClock(),
            listener=RecordedRounds(),
        )
        for number in range(services):
            self.set_service(number)
            self.set_endpoints(number, 3)

    def set_service(self, number: int, node_port: int = 0) -> None:
        facts = service(
            f"ns/svc-{number:05}",
            cluster_ip=f"10.96.{number >> 8}.{number & 255}",
            node_port=node_port,
        )
        self.engine.pipeline.store.set_service(facts)

    def set_endpoints(self, number: int, count: int) -> None:
        found = [endpoint(f"10.{number >> 8}.{number & 255}.{host}") for host in range(count)]
        facts = endpoint_slice(f"ns/svc-{number:05}", found, slice_name=f"s{number}")
        self.engine.pipeline.store.set_slice(facts)

    def remove(self, number: int) -> None:
        self.engine.pipeline.store.delete_service(ServiceName("ns", f"svc-{number:05}"))

    async def cost(self) -> tuple[int, int]:
        """Restores and bytes of a round."""
        before = len(self.tables.restores)
        assert (await self.engine.round()).failure_text == ""
        sent = self.tables.restores[before:]
        return len(sent), sum(map(len, sent))


async def _costs(services: int) -> list[tuple[int, int]]:
    cluster = Cluster(services)
    await cluster.cost()
    found = []
    cluster.set_endpoints(7, 4)
    found.append(await cluster.cost())
    cluster.set_service(8, node_port=30080)
    found.append(await cluster.cost())
    cluster.remove(9)
    found.append(await cluster.cost())
    cluster.set_endpoints(7, 4)
    found.append(await cluster.cost())
    return found


async def test_a_change_costs_the_same_in_any_cluster() -> None:
    """One more endpoint, a node port, a removed Service: one restore each, of the same size."""
    small, big = await _costs(30), await _costs(300)
    assert [calls for calls, _ in small] == [calls for calls, _ in big] == [1, 1, 1, 0]
    for (_, few), (_, many) in zip(small, big, strict=True):
        assert many <= few + 16  # positions have more digits
    assert all(size < 3000 for _, size in big)


@pytest.mark.kernel
async def test_the_benchmark_runs() -> None:
    """With a tiny cluster, for its mechanics: every comparison has two times."""
    size = Size(3, 2)
    found = [
        await bench.full_sync(size, rounds=1),
        await bench.full_check(size),
        *await bench.one_endpoint(size, variant="legacy", rounds=1),
        *await bench.one_endpoint(size, variant="nft", rounds=1),
        await bench.cold_start(size),
    ]
    assert all(0 < c.ours_seconds < 60 and 0 < c.other_seconds < 60 for c in found)
    assert not any(comparison.is_cut for comparison in found)
    assert "full sync (legacy) at 3 × 2: ours" in str(found[0])
