"""Class chains: what services of the same shape share instead of a chain each.

A class is the number of endpoints (and, for external traffic policy Local, the number on this
node). Its chain draws a number below it and looks the endpoint up in a shared map under the
packet's own destination. So its rules mention no service, and adding a service adds no chain.

    pick-3                 dnat to (daddr, proto, port, random mod 3) of service-pools
    external-3             the same, masqueraded: external addresses, policy Cluster
    external-local-3-1     pods and node use all 3, others the 1 on this node: policy Local
    nodeport-…             the same by node port instead of address

Pure. Every function returns all chains its class needs, the entry chain first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from kubeproxy.facts.node import LocalDetector
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import Chain, ChainItem, ChainKind
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules import pieces as rules
from kubeproxy.modes.nftables.rules.expressions import Rule
from kubeproxy.modes.nftables.rules.pieces import rule


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
def pick_class(context: ClassContext, count: int, *, by_node_port: bool = False) -> ServiceClass:
    """Plain choice among `count` endpoints."""
    prefix = "nodeport-" if by_node_port else ""
    map_name = names.NODE_PORT_POOLS if by_node_port else names.SERVICE_POOLS
    name = f"{prefix}pick-{count}"
    chain = _picking(context.layout, count, map_name, by_node_port)
    return ServiceClass(name, ((ChainItem(name), chain),))


@lru_cache(maxsize=4096)
def masqueraded_class(
    context: ClassContext, count: int, *, by_node_port: bool = False
) -> ServiceClass:
    """External traffic, policy Cluster: the client's address is replaced."""
    inner = pick_class(context, count, by_node_port=by_node_port)
    name = f"{_external(by_node_port)}-{count}"
    masquerade = rule(rules.mark_or(context.mark), comment="masquerade")
    chain = Chain(ChainKind.CLASS_ENTRY, (masquerade, rule(rules.goto(inner.entry))))
    return ServiceClass(name, ((ChainItem(name), chain), *inner.chains))


@lru_cache(maxsize=4096)
def local_class(
    context: ClassContext, count: int, local_count: int, *, by_node_port: bool = False
) -> ServiceClass:
    """External traffic, policy Local. Without local endpoints outsiders are dropped elsewhere."""
    inner = pick_class(context, count, by_node_port=by_node_port)
    name = f"{_external(by_node_port)}-local-{count}-{local_count}"
    chains = list(inner.chains)
    listed = list(short_circuit(context, inner.entry))
    if local_count:
        kind = "nodeport-" if by_node_port else ""
        map_name = names.NODE_PORT_LOCAL_POOLS if by_node_port else names.LOCAL_POOLS
        target = f"{kind}pick-local-{local_count}"
        picking = _picking(context.layout, local_count, map_name, by_node_port)
        chains.append((ChainItem(target), picking))
        listed.append(rule(rules.goto(target)))
    entry = Chain(ChainKind.CLASS_ENTRY, tuple(listed))
    return ServiceClass(name, ((ChainItem(name), entry), *chains))


_DISPATCHED_CLASS = re.compile(r"([a-z]+)(?:-local)?-([0-9]{1,5})(?:-([0-9]{1,5}))?(?:-[a-z]+)?")
"""A word, one or two numbers, and perhaps how a number is drawn."""


@lru_cache(maxsize=4096)
def class_pools(entry: str) -> tuple[tuple[str, int], ...]:
    """The maps that a class looks up, each with the number of slots it draws from there.

    By the name of the chain that dispatch leads to; none for a chain that is no class.
    """
    found = _DISPATCHED_CLASS.fullmatch(entry)
    if found is None:
        return ()
    by_node_port = found[1] == "nodeport"
    main = names.NODE_PORT_POOLS if by_node_port else names.SERVICE_POOLS
    local = names.NODE_PORT_LOCAL_POOLS if by_node_port else names.LOCAL_POOLS
    pools = ((main, int(found[2])), (local, int(found[3] or 0)))
    return tuple((name, count) for name, count in pools if count)


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


def _picking(layout: FamilyLayout, count: int, map_name: str, by_node_port: bool) -> Chain:
    key = rules.node_port_key() if by_node_port else rules.service_key(layout)
    words = 2 if by_node_port else layout.words + 2
    return Chain(ChainKind.CLASS_PICK, (rule(rules.pick(layout, key, words, count, map_name)),))
