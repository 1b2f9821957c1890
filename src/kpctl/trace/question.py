"""One question about one proxy: the snapshot's items and the kernel's, traced and compared."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from kpctl.snapshot.types import Snapshot
from kpctl.trace.compare import Comparison, Wanted, compare, follow
from kpctl.trace.kernel import kernel_items
from kpctl.trace.packets import Arrival
from kpctl.trace.plan import PlanTracer, traits_of
from kpctl.trace.subject import Destination, arrival_at
from kpctl.trace.tracers import assume_ports, make_tracer
from kubeproxy.errors import ConfigError
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import SCAFFOLD, AnyItem, AnyValue, Owner
from kubeproxy.modes.userspace.items import Listener
from kubeproxy.plan.types import PoolName


class Question(Struct, frozen=True):
    """SOURCE, where it arrives, and DESTINATION:PORT/PROTO."""

    source: str
    destination: Destination
    interface: str = ""

    @property
    def family(self) -> Family:
        return self.destination.family


class Answer(Struct, frozen=True):
    """What was found out, and the items that it is about."""

    comparison: Comparison
    wanted: Wanted


def arrival_in(snapshot: Snapshot, question: Question) -> Arrival:
    """The packet as the node of the snapshot meets it. Raises ConfigError."""
    pipeline = snapshot.pipelines.get(question.family)
    if pipeline is None:
        raise ConfigError(f"this proxy does not serve {question.family.value}")
    return arrival_at(
        pipeline.node,
        pipeline.plans(),
        question.source,
        question.destination,
        question.interface,
    )


async def answer(snapshot: Snapshot, question: Question, *, is_live: bool) -> Answer:
    """Follow the packet through all three. Raises ProxyError."""
    arrival = arrival_in(snapshot, question)
    pipeline = snapshot.pipelines[question.family]
    ports = proxy_ports(snapshot, question.family)
    wanted = wanted_items(snapshot, question.family)
    held = await kernel_items(snapshot, question.family, ports, wanted.items, is_live=is_live)
    localhost = snapshot.settings.config.iptables.localhost_node_ports
    traits = traits_of(snapshot.mode, localhost_node_ports=localhost)
    plans = sorted(pipeline.plans(), key=lambda plan: plan.id)
    rendered = make_tracer(snapshot.mode, wanted.items, pipeline.node, ports)
    kernel = None
    if held is not None:
        kernel = follow(make_tracer(snapshot.mode, held, pipeline.node, ports), arrival)
    comparison = compare(
        arrival,
        follow(PlanTracer(plans, pipeline.node, traits), arrival),
        follow(rendered, arrival),
        kernel,
        wanted=wanted.items,
        held=held,
    )
    return Answer(comparison, wanted)


def wanted_items(snapshot: Snapshot, family: Family) -> Wanted:
    """Everything that the proxy wants in the kernel, with the owners.

    What several Services want alike, such as chains for services of one shape, is of none of them.
    """
    items: dict[AnyItem, AnyValue] = {}
    owners: dict[AnyItem, Owner] = {}
    for owner, fragment in snapshot.pipelines[family].fragments().items():
        for item, value in fragment.items():
            if item not in items:
                items[item], owners[item] = value, owner
            elif items[item] == value:
                owners[item] = SCAFFOLD
    return Wanted(items, owners)


class _Learned(Struct):
    """The part of what the daemon has learned that says where its listeners are."""

    ports: dict[PoolName, int] = {}


def proxy_ports(snapshot: Snapshot, family: Family) -> Mapping[Listener, int]:
    """The proxy ports of userspace mode; for manifests, of which no socket is bound, assumed ones.

    Other modes have none.
    """
    if snapshot.mode != "userspace":
        return {}
    pipeline = snapshot.pipelines[family]
    if snapshot.status is None:
        plans = list(pipeline.plans())
        ports = assume_ports(snapshot.backends[family], plans, pipeline.node)
        pipeline.rerender([plan.id for plan in plans])
        return ports
    found: dict[Listener, int] = {}
    for plan in pipeline.plans():
        held = snapshot.held[family, plan.id.service].learned
        learned = msgspec.json.decode(held, type=dict[str, _Learned] | None) or {}
        own = learned.get(str(plan.id), _Learned())
        found |= {Listener(plan.id, pool): port for pool, port in own.ports.items()}
    return found
