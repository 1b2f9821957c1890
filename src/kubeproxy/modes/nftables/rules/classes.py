"""Class chains: what services of the same shape share instead of a chain each.

A class is the number of slots (without weights that of endpoints, and for external traffic policy
Local the number on this node). Its chain draws a number below it and looks the endpoint up in a
shared map under the packet's own destination. So its rules mention no service, and adding a service
adds no chain.

    pick-3                 dnat to (daddr, proto, port, random mod 3) of service-pools
    external-3             the same, masqueraded: external addresses, policy Cluster
    external-local-3-1     pods and node use all 3, others the 1 on this node: policy Local
    nodeport-…             the same by node port instead of address
    hash-3, external-3-hash, external-local-3-1-hash
                           the number is a hash of the client's address, not drawn at random

With weights, and in consistent tables, an endpoint is in several slots: the number of a class is
that of slots.

Pure. Every function returns all chains its class needs, the entry chain first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from kubeproxy.facts.node import LocalDetector
from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import Chain, ChainItem, ChainKind
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules import pieces as rules
from kubeproxy.modes.nftables.rules.expressions import Hash, ImmediateVerdict, Lookup, Numgen, Rule
from kubeproxy.modes.nftables.rules.pieces import Draw, rule

DRAWS: Mapping[Algorithm | None, Draw] = {
    None: Draw.PICK,
    Algorithm.RANDOM: Draw.PICK,
    Algorithm.ROUND_ROBIN: Draw.TURN,
    Algorithm.SOURCE_HASH: Draw.HASH,
    Algorithm.CONSISTENT_HASH: Draw.HASH,
}
"""How this mode draws a slot for each algorithm that it has."""


class ClassContext(Struct, frozen=True):
    """What class chains depend on besides their numbers: the same for all services of a node."""

    layout: FamilyLayout
    detector: LocalDetector
    mark: int


class ServiceClass(Struct, frozen=True):
    """The chains of one class. Dispatch leads to `entry`."""

    entry: str
    chains: tuple[tuple[ChainItem, Chain], ...]


@lru_cache(maxsize=4096)
def pick_class(
    context: ClassContext, count: int, *, by_node_port: bool = False, draw: Draw = Draw.PICK
) -> ServiceClass:
    """Plain choice among `count` slots."""
    prefix = names.NODE_PORT_PREFIX if by_node_port else ""
    map_name = names.NODE_PORT_POOLS if by_node_port else names.SERVICE_POOLS
    name = f"{prefix}{draw}-{count}"
    chain = _picking(context.layout, count, map_name, by_node_port, draw)
    return ServiceClass(name, ((ChainItem(name), chain),))


@lru_cache(maxsize=4096)
def masqueraded_class(
    context: ClassContext, count: int, *, by_node_port: bool = False, draw: Draw = Draw.PICK
) -> ServiceClass:
    """External traffic, policy Cluster: the client's address is replaced."""
    inner = pick_class(context, count, by_node_port=by_node_port, draw=draw)
    name = f"{_external(by_node_port)}-{count}{_suffix(draw)}"
    masquerade = rule(rules.mark_or(context.mark), comment="masquerade")
    chain = Chain(ChainKind.CLASS_ENTRY, (masquerade, rule(rules.goto(inner.entry))))
    return ServiceClass(name, ((ChainItem(name), chain), *inner.chains))


@lru_cache(maxsize=4096)
def local_class(
    context: ClassContext,
    count: int,
    local_count: int,
    *,
    by_node_port: bool = False,
    draw: Draw = Draw.PICK,
) -> ServiceClass:
    """External traffic, policy Local. Without local endpoints outsiders are dropped elsewhere."""
    inner = pick_class(context, count, by_node_port=by_node_port, draw=draw)
    name = f"{_external(by_node_port)}-local-{count}-{local_count}{_suffix(draw)}"
    chains = list(inner.chains)
    listed = list(short_circuit(context, inner.entry))
    if local_count:
        prefix = names.NODE_PORT_PREFIX if by_node_port else ""
        map_name = names.NODE_PORT_LOCAL_POOLS if by_node_port else names.LOCAL_POOLS
        target = f"{prefix}{draw}-local-{local_count}"
        picking = _picking(context.layout, local_count, map_name, by_node_port, draw)
        chains.append((ChainItem(target), picking))
        listed.append(rule(rules.goto(target)))
    entry = Chain(ChainKind.CLASS_ENTRY, tuple(listed))
    return ServiceClass(name, ((ChainItem(name), entry), *chains))


def drawn_pools(entry: str, chains: Mapping[str, Chain]) -> dict[str, int]:
    """The maps in which packets that enter here find an endpoint, each with its number of slots.

    By what the chains do, whatever their names.
    """
    pools: dict[str, int] = {}
    reached = [entry]
    for name in reached:  # grows meanwhile
        for found in chains[name].rules if name in chains else ():
            moduli = [e.modulus for e in found.expressions if isinstance(e, Numgen | Hash)]
            lookups = [e.set for e in found.expressions if isinstance(e, Lookup)]
            pools.update(zip(lookups, moduli, strict=False))
            verdicts = [e.verdict for e in found.expressions if isinstance(e, ImmediateVerdict)]
            reached += [v.chain for v in verdicts if v.chain and v.chain not in reached]
    return pools


def short_circuit(context: ClassContext, target: str) -> Iterator[Rule]:
    """Rules by which this node and its pods use all endpoints, the node itself masqueraded."""
    if context.detector.is_implemented:
        from_pod = rules.from_local_pod(context.layout, context.detector)
        yield rule(from_pod, rules.goto(target), comment="short-circuit pod traffic")
    from_node = rules.is_source_local()
    yield rule(from_node, rules.mark_or(context.mark), comment="masquerade local traffic")
    yield rule(from_node, rules.goto(target), comment="short-circuit local traffic")


def _external(by_node_port: bool) -> str:
    return "nodeport" if by_node_port else "external"


def _suffix(draw: Draw) -> str:
    return "" if draw is Draw.PICK else f"-{draw}"


def _picking(
    layout: FamilyLayout, count: int, map_name: str, by_node_port: bool, draw: Draw
) -> Chain:
    picking = rules.pick(layout, count, map_name, by_node_port=by_node_port, draw=draw)
    return Chain(ChainKind.CLASS_PICK, (rule(picking),))
