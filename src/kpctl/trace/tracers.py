"""A tracer for each mode, with the same interface: over wanted items, or the kernel's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kpctl.trace import iptables, ipvs, nftables, userspace
from kpctl.trace.packets import Tracer
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import SCAFFOLD, AnyBackend, AnyItem, AnyValue, Owner
from kubeproxy.modes.registry import load_mode
from kubeproxy.modes.userspace.items import Learned, Listener
from kubeproxy.modes.userspace.render import assume_bound, learned_of
from kubeproxy.plan.types import ServicePlan

_MODES: Mapping[str, Callable[[Mapping[AnyItem, AnyValue], NodeFacts], Tracer]] = {
    "nftables": nftables.ItemTracer,  # type: ignore[dict-item]  # its items, which the engine mixes
    "iptables": iptables.ItemTracer,
    "ipvs": ipvs.ItemTracer,
}
FIRST_ASSUMED_PORT = 1
"""Stands for a proxy port that no socket has been bound to yet."""


def make_tracer(
    mode: str,
    items: Mapping[AnyItem, AnyValue],
    node: NodeFacts,
    ports: userspace.Ports | None = None,
) -> Tracer:
    """A tracer over items of a mode. `ports` are the proxy ports of userspace mode."""
    if mode == "userspace":
        return userspace.ItemTracer(items, node, ports)
    return _MODES[mode](items, node)


def trace_plans(
    plans: Sequence[ServicePlan], node: NodeFacts, *, mode: str, options: object = None
) -> Tracer:
    """A tracer over what a mode renders for these plans."""
    items, ports = rendered(plans, node, mode=mode, options=options)
    return make_tracer(mode, items, node, ports)


def rendered(
    plans: Sequence[ServicePlan], node: NodeFacts, *, mode: str, options: object = None
) -> tuple[dict[AnyItem, AnyValue], userspace.Ports]:
    """Render these plans. Return the items, and the proxy ports that were assumed."""
    found = load_mode(mode)
    backend = found.create(node.family, options or _default_options(mode))
    ports = assume_ports(backend, plans, node) if mode == "userspace" else {}
    fragments: dict[Owner, Mapping[AnyItem, AnyValue]] = {SCAFFOLD: backend.scaffold(node)}
    facts = backend.rendering_facts(node)
    fragments |= {plan.id: backend.render(plan, facts) for plan in plans}
    return merged(fragments), ports


def _default_options(mode: str) -> object:
    from importlib import import_module

    return import_module(f"kubeproxy.modes.{mode}.options").Options()


def merged(fragments: Mapping[Owner, Mapping[AnyItem, AnyValue]]) -> dict[AnyItem, AnyValue]:
    """All items; of a contested one the smallest owner's, as in the ledger."""
    items: dict[AnyItem, AnyValue] = {}
    for owner in sorted(fragments):
        for item, value in fragments[owner].items():
            items.setdefault(item, value)
    return items


def assume_ports(
    backend: AnyBackend, plans: Iterable[ServicePlan], node: NodeFacts
) -> dict[Listener, int]:
    """Let a backend of userspace mode render as if each listener had a port. Return the ports."""
    ports: dict[Listener, int] = {}
    for plan in sorted(plans, key=lambda found: found.id):
        bound = assume_bound(plan, node)
        own = {each: FIRST_ASSUMED_PORT + len(ports) + n for n, each in enumerate(bound.ports)}
        ports |= own
        backend.assume(plan, node, learned_of(plan, node, Learned(own, bound.claims)))
    return ports
