"""One family's way from facts to the ledger: store → plan → render → wanted items.

No I/O and no waiting, so between taking the dirty set and having the changes nothing can
interfere. Work stops at the first equality: same facts, same plan, same item.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from kubeproxy.errors import fault_text
from kubeproxy.facts.endpoint import Endpoint, PortKey
from kubeproxy.facts.ids import ServiceName
from kubeproxy.facts.node import NodeFacts, planning_facts
from kubeproxy.facts.policy import FULL_ROTATION, Rotation
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.facts.store import Store
from kubeproxy.modes.base import (
    SCAFFOLD,
    AnyBackend,
    AnyChange,
    AnyFragment,
    AnyItem,
    AnySink,
    AnyValue,
    Owner,
)
from kubeproxy.plan.conntrack import has_flow_rules
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.health import passing
from kubeproxy.plan.limits import admit_endpoints
from kubeproxy.plan.service import plan_service
from kubeproxy.plan.types import ServicePlan
from kubeproxy.sync.ledger import Ledger

LARGE_CLUSTER_ENDPOINTS = 1000
"""Above this many endpoints upstream's iptables mode leaves out comments to save time."""


class Recomputed(Struct, frozen=True):
    """What one pass over the dirty services did."""

    services: int = 0
    flow_changes: tuple[tuple[Owner, ServicePlan | None], ...] = ()
    """Service ports whose flows may become stale and whose plan is another one now, each with the
    plan of before."""
    trigger_times: Mapping[ServiceName, tuple[float, ...]] = {}
    faults: Mapping[ServiceName, str] = {}


class PlanListener(Protocol):
    """Receives which Services were planned again."""

    def replanned(
        self, pipeline: Pipeline, replaced: Mapping[ServiceName, tuple[ServicePlan, ...]]
    ) -> None:
        """These had these plans before. The pipeline has the new ones."""


class Pipeline:
    """The mutable state of one family; owned by its engine."""

    def __init__(
        self,
        backend: AnyBackend,
        node: NodeFacts,
        *,
        is_large: bool | None = None,
        listeners: Sequence[PlanListener] = (),
    ) -> None:
        """`is_large` is whether the cluster counts as large; by default its endpoints decide."""
        self._listeners = listeners
        self._forced_large = is_large
        self.store = Store()
        self.ledger: Ledger[Owner, AnyItem, AnyValue] = Ledger()
        self.health_check_ports: dict[ServiceName, int] = {}
        self.local_ready: dict[ServiceName, int] = {}
        self.faults: dict[ServiceName, str] = {}
        """Services that planning or rendering cannot digest: what they had before stays."""
        self.frontends: Frontends | None = None
        """Which service port a flow belongs to, once that is asked for: `index_frontends`."""
        self.planned = 0
        self.rendered = 0
        self._backend = backend
        self._node = node
        self._planning_node = planning_facts(node)
        self._rendering_node = backend.rendering_facts(node)
        self._is_scaffold_due = True
        self._is_plan_due = True
        self._is_render_due = True
        self._plans: dict[ServiceName, tuple[ServicePlan, ...]] = {}
        self.service_port_total = 0
        self.endpoint_total = 0
        self.no_local_internal = 0
        self.no_local_external = 0

    @property
    def node(self) -> NodeFacts:
        return self._node

    def set_node(self, node: NodeFacts) -> bool:
        """Hold these facts about the node; True if they differ from those held."""
        if node == self._node:
            return False
        self._node = node
        self._is_scaffold_due = True
        if self.frontends is not None:
            self.frontends.set_node(node)
        # Planning and rendering are given no more than these: what is left out cannot matter.
        planning, rendering = planning_facts(node), self._backend.rendering_facts(node)
        self._is_plan_due = self._is_plan_due or planning != self._planning_node
        self._is_render_due = self._is_render_due or rendering != self._rendering_node
        self._planning_node, self._rendering_node = planning, rendering
        return True

    def index_frontends(self) -> Frontends:
        """Keep an index of frontends from now on. Without it a change costs nothing for it."""
        self.frontends = self.frontends or Frontends(self._node, self.plans())
        return self.frontends

    def plans(self) -> Iterable[ServicePlan]:
        for plans in self._plans.values():
            yield from plans

    def plans_of(self, name: ServiceName) -> tuple[ServicePlan, ...]:
        return self._plans.get(name, ())

    def plan_of(self, owner: Owner) -> ServicePlan | None:
        return next((plan for plan in self.plans_of(owner.service) if plan.id == owner), None)

    @property
    def service_total(self) -> int:
        return len(self._plans)

    def recompute(self) -> Recomputed:
        """Plan and render what changed since the last call."""
        dirty = self.store.take_dirty()
        names: Collection[ServiceName] = dirty.services
        if self._is_plan_due:
            self._is_plan_due = False
            # In the order of arrival, which is nearly that of names: owners are then recorded
            # in order, and the list of those who share an item grows at its end.
            names = dict.fromkeys((*self.store.known(), *self._plans))
        known_faults = frozenset(self.faults)
        replaced = {name: self._replan(name) for name in names}
        self.set_node(replace(self._node, is_large_cluster=self._is_large))
        if self._is_scaffold_due:
            self._is_scaffold_due = False
            self.ledger.put(SCAFFOLD, self._backend.scaffold(self._node))
        if self._is_render_due:
            self._is_render_due = False
            self._render_everything()
        else:
            for name, before in replaced.items():
                self._render_changes(before, self._plans.get(name, ()))
        flow_changes = [
            change
            for name, before in replaced.items()
            for change in _flow_changes(before, self._plans.get(name, ()))
        ]
        for listener in self._listeners:
            listener.replanned(self, replaced)
        faults = {
            name: text
            for name, text in self.faults.items()
            if name in names or name not in known_faults
        }
        return Recomputed(len(names), tuple(flow_changes), dirty.trigger_times, faults)

    @property
    def _is_large(self) -> bool:
        if self._forced_large is not None:
            return self._forced_large
        return self.endpoint_total > LARGE_CLUSTER_ENDPOINTS

    def _replan(self, name: ServiceName) -> tuple[ServicePlan, ...]:
        """Plan one Service again. Return the plans that held before."""
        self.planned += 1
        self.faults.pop(name, None)
        before = self._plans.get(name, ())
        try:
            after = self._plan(name)
        except Exception as fault:
            self.faults[name] = fault_text(fault)
            return before
        self._plans.pop(name, None)
        if after:
            self._plans[name] = after
        if self.frontends is not None:
            self.frontends.remove(before)
            self.frontends.add(after)
        self._count(before, -1)
        self._count(after, +1)
        return before

    def _plan(self, name: ServiceName) -> tuple[ServicePlan, ...]:
        facts = self.store.service(name)
        if facts is None:
            self._forget_health(name)
            return ()
        endpoints = self.store.endpoints(name)
        rotation = self.store.rotation(name)
        self._note_health(facts, endpoints, rotation)
        return plan_service(facts, endpoints, self._planning_node, rotation)

    def _count(self, plans: tuple[ServicePlan, ...], sign: int) -> None:
        """Keep cluster-wide totals up to date without walking the cluster."""
        self.service_port_total += sign * len(plans)
        self.endpoint_total += sign * sum(plan.endpoint_count for plan in plans)
        internal, external = self._backend.without_local_endpoints(plans)
        self.no_local_internal += sign * internal
        self.no_local_external += sign * external

    def _render(self, plan: ServicePlan) -> None:
        self.rendered += 1
        try:
            fragment = self._backend.render(plan, self._rendering_node)
        except Exception as fault:
            self.faults[plan.id.service] = fault_text(fault)
            return
        self.ledger.put(plan.id, fragment)

    def _render_everything(self) -> None:
        wanted = {plan.id for plan in self.plans()} | {SCAFFOLD}
        for owner in self.ledger.owners():
            if owner not in wanted:
                self.ledger.remove(owner)
        for plan in self.plans():
            self._render(plan)

    def _render_changes(
        self, before: tuple[ServicePlan, ...], after: tuple[ServicePlan, ...]
    ) -> None:
        if before == after:
            return
        held = {plan.id: plan for plan in before}
        for plan in after:
            if held.pop(plan.id, None) != plan:
                self._render(plan)
        for gone in held:
            self.ledger.remove(gone)

    def render_all(self) -> None:
        """Render everything again: the mode has learned something about the host."""
        self._is_scaffold_due = self._is_render_due = True
        self.recompute()

    def rerender(self, owners: Collection[Owner]) -> None:
        """Render these owners again: the mode has learned something about them from an effect."""
        for owner in owners:
            for plan in self._plans.get(owner.service, ()):
                if plan.id == owner:
                    self._render(plan)

    def _note_health(
        self,
        facts: ServiceFacts,
        endpoints: Mapping[PortKey, tuple[Endpoint, ...]],
        rotation: Rotation,
    ) -> None:
        if not facts.health_check_node_port:
            self._forget_health(facts.name)
            return
        self.health_check_ports[facts.name] = facts.health_check_node_port
        self.local_ready[facts.name] = count_local_ready(facts, self._admit(endpoints), rotation)

    def targets(self, name: ServiceName) -> Mapping[PortKey, tuple[Endpoint, ...]]:
        """The endpoints of a Service that may be targets, whatever their condition."""
        return self._admit(self.store.endpoints(name))

    def _admit(
        self, endpoints: Mapping[PortKey, tuple[Endpoint, ...]]
    ) -> Mapping[PortKey, tuple[Endpoint, ...]]:
        node = self._planning_node
        return {key: admit_endpoints(found, node)[0] for key, found in endpoints.items()}

    def _forget_health(self, name: ServiceName) -> None:
        self.health_check_ports.pop(name, None)
        self.local_ready.pop(name, None)

    def changes(self, sink: AnySink) -> list[AnyChange]:
        """What must change of the sink's items."""
        return self.ledger.difference(sink_accepts(sink))

    def first_differences(self, accept: Callable[[AnyItem], bool], most: int) -> list[AnyChange]:
        """Some of what must change of the accepted items, found without looking at the rest."""
        return list(islice(self.ledger.differences(accept), most))

    def resync(self, sink: AnySink, found: AnyFragment) -> int:
        """Reset the ledger to what the sink has read. Return the number of items that differed."""
        return self.ledger.resync(found, sink_accepts(sink))

    def fragments(self) -> Mapping[Owner, AnyFragment]:
        """Everything wanted, by owner, in the order of owners."""
        return {owner: self.ledger.fragment(owner) for owner in sorted(self.ledger.owners())}


def sink_accepts(sink: AnySink) -> Callable[[AnyItem], bool]:
    """Return whether an item belongs to the sink, as a function."""
    return lambda item: isinstance(item, sink.item_types)


def count_local_ready(
    facts: ServiceFacts,
    endpoints: Mapping[PortKey, tuple[Endpoint, ...]],
    rotation: Rotation = FULL_ROTATION,
) -> int:
    """Distinct addresses of ready endpoints on this node that pass their check, over all ports."""
    return len(
        {
            endpoint.address
            for key, found in endpoints.items()
            for endpoint in passing(facts, key.protocol, found, rotation).endpoints
            if endpoint.is_ready and endpoint.is_local
        }
    )


def _flow_changes(
    before: tuple[ServicePlan, ...], after: tuple[ServicePlan, ...]
) -> Iterable[tuple[Owner, ServicePlan | None]]:
    old = {plan.id: plan for plan in before if has_flow_rules(plan)}
    new = {plan.id: plan for plan in after if has_flow_rules(plan)}
    for key in old.keys() | new.keys():
        if old.get(key) != new.get(key):
            yield key, old.get(key)
