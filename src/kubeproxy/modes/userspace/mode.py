"""The userspace mode of one family: sockets and the process that serves them, rules behind.

Sinks in order: sockets before rules, so that nothing is ever diverted to a port where no socket is
open. Removals go the other way round.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Mapping, Sequence

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.policy import Algorithm
from kubeproxy.kernel.descriptors import raise_descriptor_limit
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import (
    AnyChange,
    AnySink,
    Backend,
    Carried,
    DriftListener,
    Mode,
    OpenSocket,
    Other,
    Owner,
    RefusedPackets,
)
from kubeproxy.modes.netfilter.describe import explained, item_lines
from kubeproxy.modes.netfilter.rules.refused import TABLE as REFUSING_TABLE
from kubeproxy.modes.netfilter.rules.refused import parse_refused
from kubeproxy.modes.netfilter.sinks.monitor import EditMonitor
from kubeproxy.modes.netfilter.sinks.others import other_rules
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.variant import resolve_variant
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.modes.userspace.carrier.messages import LogMessage
from kubeproxy.modes.userspace.check import check
from kubeproxy.modes.userspace.cleanup import cleanup, retire
from kubeproxy.modes.userspace.describe import describe, socket_lines
from kubeproxy.modes.userspace.items import Fragment, Item, Learned, Listener, Value
from kubeproxy.modes.userspace.options import Options, options_of
from kubeproxy.modes.userspace.render import assume_bound, assume_learned, learned_of, render
from kubeproxy.modes.userspace.rules.flows import portal_flow_rules
from kubeproxy.modes.userspace.scaffold import SCOPE, scaffold
from kubeproxy.modes.userspace.sinks.binding import Binder
from kubeproxy.modes.userspace.sinks.handover import HandOver
from kubeproxy.modes.userspace.sinks.monitor import Monitor
from kubeproxy.modes.userspace.sinks.ports import PortAllocator, parse_port_range
from kubeproxy.modes.userspace.sinks.sockets import SocketSink
from kubeproxy.plan.conntrack import FlowRules
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.types import ServicePlan

DESCRIPTORS = 64_000
"""The limit v1.25 asks for; every connection takes two."""

logger = get_logger(__name__)


class UserspaceBackend(Backend[Item, Value, Options]):
    """Listeners, claims and portals of one family."""

    carries = True

    def __init__(self, family: Family, options: Options) -> None:
        super().__init__(family, options)
        self.tables = Xtables(family, options.tools)
        self.netfilter = NetfilterSink(self.tables, SCOPE)
        ports = PortAllocator(parse_port_range(options.port_range), random.randrange)
        binder = Binder(family, options.listen_address(family), ports)
        self.sockets = SocketSink(binder, options.udp_idle_seconds, _log)
        self._is_started = False
        self._assumed: dict[Owner, Learned] = {}

    @property
    def sinks(self) -> Sequence[AnySink]:
        return (self.sockets, self.netfilter)

    @property
    def kernel_sinks(self) -> Sequence[AnySink]:
        return (self.netfilter,)

    def open_sockets(self, items: Mapping[Item, Value]) -> Sequence[OpenSocket]:
        # Claims are left out: a TCP socket that is bound and does not listen is shown nowhere.
        address = self.options.listen_address(self.family)
        return [
            OpenSocket(item.owner.protocol, address, port)
            for item in items
            if isinstance(item, Listener)
            and (learned := self._assumed.get(item.owner))
            and (port := learned.ports.get(item))
        ]

    def explained(self, changes: Iterable[AnyChange]) -> Sequence[AnyChange]:
        return explained(changes)

    async def others(self) -> Sequence[Other]:
        return await other_rules(self.tables, SCOPE)

    def scaffold(self, node: NodeFacts) -> Fragment:
        return scaffold(node, self.options)

    def render(self, plan: ServicePlan, node: NodeFacts) -> Fragment:
        learned = self.sockets.learned if self._is_started else self._assumed_of(plan, node)
        return render(plan, node, self.options, learned)

    def _assumed_of(self, plan: ServicePlan, node: NodeFacts) -> Learned:
        return self._assumed.get(plan.id) or assume_bound(plan, node)

    def learned(self, plan: ServicePlan, node: NodeFacts) -> object:
        return learned_of(plan, node, self.sockets.learned)

    def assume(self, plan: ServicePlan, node: NodeFacts, learned: object) -> None:
        self._assumed[plan.id] = assume_learned(plan, node, learned)

    def describe(self, fragments: Mapping[Owner, Fragment]) -> str:
        return describe(fragments)

    def lines(self, items: Mapping[Item, Value]) -> Sequence[str]:
        return [*socket_lines(items), *item_lines(items)]

    async def start(self, node: NodeFacts) -> None:
        """Raise the limit of open files and start the carrier.

        It is not waited for: on a slow machine its start must not keep the process from serving
        health and metrics, let alone end it. Listeners wait for it, and with them their rules.
        """
        allowed = raise_descriptor_limit(DESCRIPTORS)
        if allowed < DESCRIPTORS:
            logger.info("Fewer open files are allowed than wanted", allowed=allowed)
        await self.tables.probe()
        try:
            await self.sockets.start_carrier()
        except KernelError as error:
            logger.error(error, "The carrier process could not be started; trying again soon")
        self._is_started = True

    async def watch(self, drifted: DriftListener) -> None:
        """Keep a carrier running, retry refused claims, and notice edits of our rules."""
        monitor = Monitor(self.sockets, self.options.sync_period_seconds)
        async with asyncio.TaskGroup() as group:
            group.create_task(monitor.run(drifted))
            group.create_task(EditMonitor(self.tables, self.netfilter).run(drifted))

    def unsettled(self) -> Collection[Owner]:
        return self.sockets.take_unsettled()

    def flow_rules(self, plan: ServicePlan | None, node: NodeFacts) -> FlowRules:
        return portal_flow_rules(plan, node, self.sockets.learned)

    async def carried(self, most_flows: int) -> Carried | None:
        return await self.sockets.carried(most_flows)

    async def refused_packets(self, frontends: Frontends) -> Sequence[RefusedPackets]:
        return parse_refused(await self.tables.save(REFUSING_TABLE, with_counters=True))

    async def hand_over(self) -> None:
        await HandOver(self.sockets, self.tables).run()

    async def close(self) -> None:
        await self.sockets.close()


def _log(message: LogMessage) -> None:
    logger.error(None, message.text, service=message.service)


MODE = Mode(
    name="userspace",
    options=options_of,
    create=UserspaceBackend,
    check=check,
    cleanup=cleanup,
    retire=retire,
    resolve=resolve_variant,
    algorithms=frozenset(Algorithm),
)
