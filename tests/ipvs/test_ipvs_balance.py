"""Algorithms and weights in this mode: schedulers, their flags, and weights of real servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from tests.support.builders import endpoint, node, plan, service

from kpctl.trace.packets import Arrival
from kpctl.trace.tracers import trace_plans
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.base import items_of
from kubeproxy.modes.ipvs.compile.servers import compile_server
from kubeproxy.modes.ipvs.describe import server_lines
from kubeproxy.modes.ipvs.items import ServerSpec, VirtualServer
from kubeproxy.modes.ipvs.mode import MODE
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.ipvs.render import render

A, B, C = (endpoint(f"10.244.1.{n}", local=n == 1) for n in (1, 2, 3))
HERE = node(mode="ipvs", algorithms=MODE.algorithms)


def servers(
    algorithm: Algorithm | None = None,
    endpoints: Sequence[Endpoint] = (A, B, C),
    weights: Mapping[str, int] | None = None,
    *,
    scheduler: str = "rr",
    **kind: object,
) -> dict[VirtualServer, ServerSpec]:
    facts = service(algorithm=algorithm, **kind)  # type: ignore[arg-type]
    found = plan(facts, endpoints, HERE, weights=weights)
    items = render(found, HERE, Options(scheduler=scheduler))
    return items_of(items, VirtualServer, ServerSpec)


def lines(*arguments: object, **words: object) -> list[str]:
    """As `ipvsadm -Sn` prints them, without the place."""
    found = server_lines(servers(*arguments, **words))  # type: ignore[arg-type]
    return [line.replace("-t 10.96.0.10:80 ", "") for line in found]


@pytest.mark.parametrize(
    ("algorithm", "plain", "weighted"),
    [
        (None, "-s rr", "-s wrr"),
        (Algorithm.ROUND_ROBIN, "-s rr", "-s wrr"),
        (Algorithm.SOURCE_HASH, "-s sh -b sh-fallback", "-s sh -b sh-fallback"),
        (Algorithm.CONSISTENT_HASH, "-s mh -b mh-fallback", "-s mh -b mh-fallback"),
        (Algorithm.LEAST_CONNECTIONS, "-s lc", "-s wlc"),
    ],
)
def test_each_algorithm_has_a_scheduler(
    algorithm: Algorithm | None, plain: str, weighted: str
) -> None:
    """Where the kernel's scheduler does not look at weights, its weighted sister is used."""
    assert lines(algorithm)[0] == f"-A {plain}"
    assert lines(algorithm, weights={A.address: 3})[0] == f"-A {weighted}"


@pytest.mark.parametrize(
    ("scheduler", "plain", "weighted"),
    [("lc", "-s lc", "-s wlc"), ("sed", "-s sed", "-s sed"), ("mh", *["-s mh -b mh-port"] * 2)],
)
def test_the_default_stays_what_the_configuration_says(
    scheduler: str, plain: str, weighted: str
) -> None:
    """With upstream's flags."""
    assert lines(scheduler=scheduler)[0] == f"-A {plain}"
    assert lines(weights={A.address: 3}, scheduler=scheduler)[0] == f"-A {weighted}"


def test_weights_are_those_of_real_servers() -> None:
    """One of weight 0 stays: its connections go on, and it gets no new ones."""
    assert lines(weights={A.address: 4, B.address: 0, C.address: 2})[1:] == [
        "-a -r 10.244.1.1:8080 -m -w 2",
        "-a -r 10.244.1.2:8080 -m -w 0",
        "-a -r 10.244.1.3:8080 -m -w 1",
    ]


def test_a_local_policy_keeps_only_local_servers_of_weight_0() -> None:
    here, elsewhere = endpoint("10.244.1.8", local=True), B
    found = servers(
        None,
        (A, here, elsewhere),
        {here.address: 0, elsewhere.address: 0},
        internal_local=True,
    )
    (spec,) = found.values()
    assert [(real.address, real.weight) for real in spec.real_servers] == [
        (A.address, 1),
        (here.address, 0),
    ]


def test_random_is_not_possible_and_the_plan_says_so() -> None:
    """The kernel has no scheduler that draws at random."""
    found = plan(service(algorithm=Algorithm.RANDOM), (A, B), HERE)
    assert found.notes == ("algorithm random is not possible in ipvs mode: its default is used",)
    assert servers(Algorithm.RANDOM) == servers(None)


@pytest.mark.parametrize("algorithm", [None, *sorted(MODE.algorithms)])
def test_replacing_one_of_ten_endpoints_sends_two_messages(algorithm: Algorithm | None) -> None:
    """One for the real server that comes; the one that goes drains."""
    pods = [endpoint(f"10.244.7.{number}") for number in range(10, 20)]
    ((server, old),) = servers(algorithm, pods).items()
    (new,) = servers(algorithm, [*pods[:9], endpoint("10.244.7.90")]).values()
    work = compile_server(server, old, new)
    assert (len(work.bodies), len(work.leaving)) == (1, 1)


def test_a_weight_that_becomes_0_is_one_message_and_no_draining() -> None:
    ((server, old),) = servers().items()
    (new,) = servers(weights={A.address: 0}).values()
    work = compile_server(server, old, new)
    assert (len(work.bodies), work.leaving) == (1, ())


@pytest.mark.parametrize("algorithm", [None, *sorted(MODE.algorithms)])
def test_the_tracer_finds_the_shares(algorithm: Algorithm | None) -> None:
    weights = {A.address: 5, B.address: 2, C.address: 0}
    plans = [plan(service(algorithm=algorithm), (A, B, C), HERE, weights=weights)]
    tracer = trace_plans(plans, HERE, mode="ipvs")
    arrival = Arrival(Family.IPV4, Protocol.TCP, "203.0.113.9", "10.96.0.10", 80, "eth0")
    found = {address: float(share) for (address, _), share in tracer.spread(arrival).items()}
    assert found == {A.address: 5 / 7, B.address: 2 / 7}
