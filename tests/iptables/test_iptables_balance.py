"""Algorithms and weights in this mode: what `statistic` makes of them, and how it spreads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import repeat

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, plan, port, service
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.spread_kit import PORT, receivers
from tests.support.worlds import address

from kpctl.flows.spread import unevenness
from kpctl.places.scratch import scratch_namespace
from kpctl.trace.packets import Arrival
from kpctl.trace.tracers import trace_plans
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.base import items_of
from kubeproxy.modes.iptables.mode import MODE, IptablesBackend
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.iptables.render import render
from kubeproxy.modes.netfilter.items import ChainGroup, GroupRules
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.sync.engine import Engine

A, B, C = (endpoint(f"10.244.1.{number}", PORT) for number in (1, 2, 3))
HERE = node(mode="iptables", algorithms=MODE.algorithms)


def shares(
    algorithm: Algorithm | None,
    endpoints: Sequence[Endpoint] = (A, B, C),
    weights: Mapping[str, int] | None = None,
    **kind: object,
) -> list[str]:
    """The `statistic` matches of the SVC chain, with the endpoint that each leads to."""
    facts = service(algorithm=algorithm, **kind)  # type: ignore[arg-type]
    items = render(plan(facts, endpoints, HERE, weights=weights), HERE, Options())
    (group,) = items_of(items, ChainGroup, GroupRules).values()
    chain = next(text for name, text in group.chains.items() if name.startswith("KUBE-SVC-"))
    found = []
    for line in chain.splitlines():
        if "--comment" in line and " -> " in line and "--rcheck" not in line:
            match = line.partition("-m statistic ")[2].partition(" -j")[0]
            found.append(f"{line.partition(' -> ')[2].partition(':')[0]} {match}".strip())
    return found


def test_random_is_what_this_mode_does_anyway() -> None:
    assert shares(Algorithm.RANDOM) == shares(None)


def test_weights_are_probabilities_of_what_is_left() -> None:
    assert shares(None, weights={A.address: 5, B.address: 2}) == [
        "10.244.1.1 --mode random --probability 0.6250000000",
        "10.244.1.2 --mode random --probability 0.6666666667",
        "10.244.1.3",
    ]


def test_turns_are_counted_by_each_rule() -> None:
    assert shares(Algorithm.ROUND_ROBIN) == [
        "10.244.1.1 --mode nth --every 3 --packet 0",
        "10.244.1.2 --mode nth --every 2 --packet 0",
        "10.244.1.3",
    ]


def test_turns_of_weights_are_one_rule_for_each_slot_and_bounded() -> None:
    found = shares(Algorithm.ROUND_ROBIN, (A, B), {A.address: 3, B.address: 2})
    assert [line.split()[0][-1] for line in found] == ["1", "2", "1", "1", "2"]
    heavy = {A.address: 255, B.address: 256}
    assert len(shares(Algorithm.ROUND_ROBIN, (A, B), heavy)) == 128


def test_affinity_goes_on_top() -> None:
    sticky = shares(Algorithm.ROUND_ROBIN, affinity_seconds=60)
    assert sticky == shares(Algorithm.ROUND_ROBIN)


@pytest.mark.parametrize(
    "algorithm",
    [Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH, Algorithm.LEAST_CONNECTIONS],
)
def test_what_no_match_can_do_is_said_and_the_default_is_used(algorithm: Algorithm) -> None:
    found = plan(service(algorithm=algorithm), (A, B), HERE)
    assert found.notes == (
        f"algorithm {algorithm} is not possible in iptables mode: its default is used",
    )
    assert shares(algorithm) == shares(None)


@pytest.mark.parametrize("algorithm", [None, Algorithm.ROUND_ROBIN])
def test_the_tracer_finds_the_shares(algorithm: Algorithm | None) -> None:
    weights = {A.address: 5, B.address: 2}
    plans = [plan(service(algorithm=algorithm), (A, B, C), HERE, weights=weights)]
    tracer = trace_plans(plans, HERE, mode="iptables")
    arrival = Arrival(Family.IPV4, Protocol.TCP, "203.0.113.9", "10.96.0.10", 80, "eth0")
    found = tracer.spread(arrival)
    for each, share in ((A, 5), (B, 2), (C, 1)):
        assert abs(found[each.address, PORT] - Fraction(share, 8)) < 1e-9


# --- in the kernel ---

VARIANTS = pytest.mark.parametrize("variant", ["nft", "legacy"])
families = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
CONNECTIONS = 3000


async def programmed(
    family: Family, variant: str, algorithm: Algorithm | None, weights: Sequence[int]
) -> tuple[Engine, Mapping[str, int], tuple[str, int]]:
    """An engine that serves a UDP port, the weights of its endpoints, and where."""
    pods = [endpoint(address(family, "pod", n), PORT, local=True) for n in (1, 2, 3)]
    given = {pod.address: weight for pod, weight in zip(pods, weights, strict=True)}
    on = node(family, mode="iptables", algorithms=MODE.algorithms)
    backend = IptablesBackend(family, Options(tools=ToolOptions(variant=variant)))
    engine = Engine(
        backend,
        on,
        clock=FakeClock(),
        listener=RecordedRounds(),
    )
    place = address(family, "cluster", 1), 53
    dns = port(53, name="dns", protocol=Protocol.UDP)
    engine.pipeline.store.set_service(
        service(cluster_ip=place[0], ports=[dns], algorithm=algorithm)
    )
    engine.pipeline.store.set_slice(
        endpoint_slice(endpoints=pods, port_name="dns", protocol=Protocol.UDP, weights=given)
    )
    await backend.start(on)
    assert (await engine.round()).failure_text == ""
    return engine, given, place


@pytest.mark.kernel
@families
@VARIANTS
@pytest.mark.parametrize("weights", [(1, 1, 1), (5, 2, 1)], ids=str)
async def test_random_keeps_its_shares(
    family: Family, variant: str, weights: tuple[int, ...]
) -> None:
    with scratch_namespace():
        _, given, place = await programmed(family, variant, None, weights)
        with receivers(family, tuple(given)) as found:
            counts = found.spread(place, repeat("", CONNECTIONS))
    assert unevenness(counts, given, given) == ""


@pytest.mark.kernel
@families
@VARIANTS
async def test_turns_are_exact_and_a_second_sync_finds_nothing_to_do(
    family: Family, variant: str
) -> None:
    """Each endpoint as often as its weight, over and over."""
    with scratch_namespace():
        engine, given, place = await programmed(family, variant, Algorithm.ROUND_ROBIN, (3, 2, 1))
        for sink in engine.backend.sinks:
            assert engine.pipeline.resync(sink, await sink.read()) == 0
        with receivers(family, tuple(given)) as found:
            for _ in range(5):
                assert found.spread(place, repeat("", 6)) == given
