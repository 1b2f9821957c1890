"""Random small clusters as one node sees them, for property tests of any mode.

Addresses come from small ranges, so that services share endpoints and sometimes contend for an
address and port; every field a plan depends on varies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hypothesis import strategies as st
from msgspec import Struct
from tests.support.builders import NODE, node

from kubeproxy.facts.endpoint import Endpoint, PortKey
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.policy import FULL_ROTATION, Algorithm, Policy, Rotation
from kubeproxy.facts.service import PortFacts, ServiceFacts
from kubeproxy.modes.registry import load_mode
from kubeproxy.plan.service import plan_service
from kubeproxy.plan.types import ServicePlan

_PREFIXES = {
    Family.IPV4: {"cluster": "10.96.0.", "pod": "10.244.1.", "outside": "203.0.113."},
    Family.IPV6: {"cluster": "fd00:96::", "pod": "fd00:244::1:", "outside": "2001:db8:113::"},
}
LOCAL_PODS = 3
"""Pods with these numbers are on the node; a pod does not move."""
SERVICE_CIDRS = {Family.IPV4: "10.96.0.0/16", Family.IPV6: "fd00:96::/112"}


def address(family: Family, kind: str, number: int) -> str:
    """An address of a kind: `cluster`, `pod` or `outside`."""
    return f"{_PREFIXES[family][kind]}{number}"


class World(Struct, frozen=True):
    """Services with their endpoints, and the node that looks at them."""

    node: NodeFacts
    services: tuple[tuple[ServiceFacts, Mapping[PortKey, tuple[Endpoint, ...]], Rotation], ...]

    def plans(self) -> Iterator[ServicePlan]:
        for facts, endpoints, rotation in self.services:
            yield from plan_service(facts, endpoints, self.node, rotation)


def _endpoints(family: Family) -> st.SearchStrategy[tuple[Endpoint, ...]]:
    one = st.builds(
        lambda number, port, state: Endpoint(
            address=address(family, "pod", number),
            port=port,
            is_local=number <= LOCAL_PODS,
            is_ready=state == "ready",
            is_serving=state != "dead",
            is_terminating=state == "draining",
            node_name=NODE if number <= LOCAL_PODS else "worker-b",
        ),
        st.integers(1, 6),
        st.sampled_from((80, 8080)),
        st.sampled_from(("ready", "ready", "ready", "draining", "dead")),
    )
    lists = st.lists(one, max_size=5, unique_by=lambda e: e.text)
    return lists.map(lambda found: tuple(sorted(found, key=lambda e: e.text)))


@st.composite
def _service(
    draw: st.DrawFn, family: Family, number: int, algorithms: Sequence[Algorithm]
) -> tuple[ServiceFacts, Mapping[PortKey, tuple[Endpoint, ...]], Rotation]:
    ports = [
        PortFacts(name, protocol, port, node_port=draw(st.sampled_from((0, 30000 + number))))
        for name, protocol, port in (
            ("http", Protocol.TCP, 80),
            ("dns", Protocol.UDP, 53),
            ("sig", Protocol.SCTP, 36412),
        )
        if draw(st.booleans())
    ]
    # Most Services ask for nothing. (A consistent table also takes long to trace.)
    algorithm = draw(st.sampled_from((*(None,) * 8, *algorithms)))
    outside = st.lists(st.integers(1, 3), max_size=2, unique=True)
    facts = ServiceFacts(
        name=ServiceName("default", f"svc-{number}"),
        cluster_ip=address(family, "cluster", number + 1),
        ports=tuple(ports),
        external_ips=tuple(address(family, "outside", n) for n in draw(outside)),
        load_balancer_ips=tuple(address(family, "outside", n) for n in draw(outside)),
        source_ranges=draw(st.sampled_from(((), _ranges(family)))),
        affinity_seconds=draw(st.sampled_from((0, 0, 60, 10800))),
        is_external_policy_local=draw(st.booleans()),
        is_internal_policy_local=draw(st.sampled_from((False, False, True))),
        policy=draw(_policies(family, algorithm)),
    )
    served = {PortKey(p.name, p.protocol): draw(_endpoints(family)) for p in ports}
    return facts, served, draw(_rotations(family))


def _policies(family: Family, algorithm: Algorithm | None) -> st.SearchStrategy[Policy | None]:
    """Mostly no lists of sources."""
    client, *_ = ranges = _ranges(family)
    pods = "10.244.0.0/16" if family is Family.IPV4 else "fd00:244::/56"
    lists: tuple[tuple[tuple[str, ...] | None, tuple[str, ...]], ...] = (
        *((None, ()),) * 5,
        ((), ()),
        ((pods,), ()),
        (ranges, (client,)),
        (None, ranges),
    )
    return st.sampled_from(lists).map(
        lambda given: (
            Policy(algorithm, allow_sources=given[0], deny_sources=given[1])
            if algorithm or given != (None, ())
            else None
        )
    )


def _rotations(family: Family) -> st.SearchStrategy[Rotation]:
    """No weights at all, or weights of some pods."""
    pods = st.integers(1, 6).map(lambda number: address(family, "pod", number))
    weights = st.dictionaries(pods, st.sampled_from((0, 2, 3, 256)), max_size=3)
    return st.one_of(st.just(FULL_ROTATION), st.builds(Rotation, weights))


def _ranges(family: Family) -> tuple[str, ...]:
    if family is Family.IPV4:
        return ("198.51.100.0/24", "198.51.100.128/25", "192.0.2.0/25")
    return ("2001:db8:100::/64", "2001:db8:10::/64")


@st.composite
def worlds(draw: st.DrawFn, family: Family, mode: str, services: int = 4) -> World:
    """A cluster with up to this many services, as a node in this mode sees it."""
    numbers = draw(st.lists(st.integers(0, services - 1), unique=True))
    algorithms = sorted(load_mode(mode).algorithms)
    found = tuple(draw(_service(family, number, algorithms)) for number in numbers)
    cidrs = draw(st.sampled_from(((), (SERVICE_CIDRS[family],))))
    here = node(family, service_cidrs=cidrs, mode=mode, algorithms=algorithms)
    return World(here, found)


def sources(family: Family) -> Sequence[tuple[str, str]]:
    """Clients worth asking about, as (address, interface); no interface is the node itself."""
    own = node(family).ip
    client = "198.51.100.7" if family is Family.IPV4 else "2001:db8:100::7"
    stranger = "203.0.113.200" if family is Family.IPV4 else "2001:db8:200::7"
    pod = address(family, "pod", 1)
    return ((client, "eth0"), (stranger, "eth0"), (pod, "cni0"), (own, ""))
