"""Hypothesis strategies over API objects and histories of events, for the tests of every mode.

The world is small on purpose: few names, addresses and ports, so that objects meet, replace and
contest each other often. Every object is valid; what is invalid has tests of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hypothesis import strategies as st
from msgspec import Struct
from tests.support.api_objects import node_object, service_cidr_object, service_object, slice_object
from tests.support.builders import NODE
from tests.support.spine import upsert

from kubeproxy.api import objects
from kubeproxy.api.source import Delete, Kind, Object, Upsert
from kubeproxy.facts.ids import Family

Key: TypeAlias = tuple[Kind, str, str]

_NAMES = ("web", "api")
_SLICES = ("s-1", "s-2")
_ZONES = ("zone-a", "zone-b")
_NODES = (NODE, "worker-b")
_PORTS = (("http", "TCP", 80), ("http", "TCP", 81), ("dns", "UDP", 53), ("", "SCTP", 9))


class RunRound(Struct, frozen=True):
    """Not an event: the engines take a round here."""


Step: TypeAlias = Upsert | Delete | RunRound


def _maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


def _address(family: Family, network: int, number: int) -> str:
    if family is Family.IPV4:
        return f"10.{network}.0.{number}"
    return f"fd00:{network}::{number:x}"


@st.composite
def _ports(draw: st.DrawFn) -> list[dict[str, object]]:
    chosen = draw(st.lists(st.sampled_from(_PORTS), max_size=2, unique_by=lambda port: port[:2]))
    return [
        {"name": name, "protocol": protocol, "port": number, "nodePort": draw(_node_ports)}
        for name, protocol, number in chosen
    ]


_node_ports = st.sampled_from((0, 30053, 30080))


@st.composite
def services(draw: st.DrawFn, name: str | None = None) -> objects.Service:
    """A Service of one or both families; now and then headless, ExternalName or another proxy's."""
    name = name or draw(st.sampled_from(_NAMES))
    number = draw(st.integers(1, 4))
    families = draw(st.sampled_from((("IPv4",), ("IPv6",), ("IPv4", "IPv6"), ("IPv6", "IPv4"))))
    cluster_ips = [_address(Family(family), 96, number) for family in families]
    is_headless = draw(st.integers(0, 11)) == 11
    is_foreign = draw(st.integers(0, 11)) == 11
    spec: dict[str, object] = {
        "type": draw(st.sampled_from(("ClusterIP", "NodePort", "LoadBalancer"))),
        "clusterIP": "None" if is_headless else cluster_ips[0],
        "clusterIPs": ["None"] if is_headless else cluster_ips,
        "ipFamilies": list(families),
        "ports": draw(_ports()),
        "externalIPs": draw(st.lists(st.sampled_from(("203.0.113.1", "2001:db8::1")), max_size=2)),
        "externalTrafficPolicy": draw(st.sampled_from(("Cluster", "Local"))),
        "internalTrafficPolicy": draw(st.sampled_from(("Cluster", "Local"))),
        "sessionAffinity": draw(st.sampled_from(("None", "ClientIP"))),
        "loadBalancerSourceRanges": draw(_maybe(st.just(["192.0.2.0/24", "fd00::/16"]))),
        "healthCheckNodePort": draw(st.sampled_from((32001, 32002))),
    }
    ingress = draw(st.lists(st.sampled_from(("198.51.100.1", "2001:db8:1::1")), max_size=2))
    return service_object(
        f"default/{name}",
        labels={objects.PROXY_NAME_LABEL: "other"} if is_foreign else None,
        ingress=[{"ip": address} for address in ingress],
        **spec,
    )


@st.composite
def _endpoints(draw: st.DrawFn, family: Family) -> Mapping[str, object]:
    conditions = st.sampled_from(
        (
            {"ready": True},
            {"ready": False, "serving": True, "terminating": True},
            {"ready": False, "serving": False},
            {"ready": True, "terminating": True},
        )
    )
    hints: dict[str, object] = {}
    if draw(st.booleans()):
        hints["forZones"] = [{"name": draw(st.sampled_from(_ZONES))}]
    if draw(st.integers(0, 3)) == 3:
        hints["forNodes"] = [{"name": draw(st.sampled_from(_NODES))}]
    return {
        "addresses": [_address(family, 244, draw(st.integers(1, 5)))],
        "nodeName": draw(st.sampled_from(_NODES)),
        "conditions": draw(conditions),
        "hints": hints,
    }


@st.composite
def slices(draw: st.DrawFn, name: str | None = None) -> objects.EndpointSlice:
    """A slice of some Service; its name decides neither its Service nor its family."""
    name = name or draw(st.sampled_from(_SLICES))
    family = draw(st.sampled_from(Family))
    ports = draw(st.lists(st.sampled_from(_PORTS), min_size=1, max_size=2))
    is_headless = draw(st.integers(0, 11)) == 11
    return slice_object(
        f"default/{name}",
        service=draw(st.sampled_from(_NAMES)),
        labels={objects.HEADLESS_LABEL: ""} if is_headless else None,
        addressType=family.value,
        ports=[{"name": n, "protocol": p, "port": 8000 + number} for n, p, number in ports],
        endpoints=draw(st.lists(_endpoints(family), max_size=4)),
    )


@st.composite
def nodes(draw: st.DrawFn) -> objects.Node:
    """This node or another, in some zone or in none."""
    return node_object(draw(st.sampled_from(_NODES)), zone=draw(st.sampled_from((*_ZONES, None))))


@st.composite
def service_cidrs(draw: st.DrawFn) -> objects.ServiceCIDR:
    cidrs = st.lists(st.sampled_from(("10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112")), max_size=2)
    return service_cidr_object(draw(st.sampled_from(("a", "b"))), *draw(cidrs))


def objects_of_any_kind() -> st.SearchStrategy[Object]:
    """Services and slices mostly."""
    return st.one_of(services(), slices(), services(), slices(), nodes(), service_cidrs())


def _deletes() -> st.SearchStrategy[Delete]:
    """Of objects that exist, and of some that never did."""
    return st.one_of(
        st.builds(
            Delete, st.just(Kind.SERVICE), st.just("default"), st.sampled_from((*_NAMES, "unknown"))
        ),
        st.builds(
            Delete,
            st.just(Kind.ENDPOINT_SLICE),
            st.just("default"),
            st.sampled_from((*_SLICES, "unknown")),
        ),
        st.builds(Delete, st.just(Kind.SERVICE_CIDR), st.just(""), st.sampled_from(("a", "b"))),
    )


@st.composite
def histories(draw: st.DrawFn, max_size: int = 15) -> list[Step]:
    """Some objects to begin with, then events with a repetition, and rounds at any place."""
    start: list[Object] = [draw(services(_NAMES[0])), *(draw(slices(name)) for name in _SLICES)]
    step = st.one_of(
        objects_of_any_kind().map(upsert),
        objects_of_any_kind().map(upsert),
        _deletes(),
        st.just(RunRound()),
    )
    steps = draw(st.lists(step, max_size=max_size))
    if steps:
        place = draw(st.integers(0, len(steps) - 1))
        steps.insert(place, steps[place])
    return [*map(upsert, start), *steps]


def final_objects(steps: Sequence[Step]) -> tuple[Object, ...]:
    """What exists after these steps."""
    held: dict[Key, Object] = {}
    for step in steps:
        match step:
            case Upsert(kind=kind, object=found):
                held[kind, found.metadata.namespace, found.metadata.name] = found
            case Delete(kind=kind, namespace=namespace, name=name):
                held.pop((kind, namespace, name), None)
    return tuple(held.values())
