"""The nftables mode as the engine sees it: one instance for each family."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

from kubeproxy.facts.address import is_loopback
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts, planning_facts
from kubeproxy.kernel.nftables.table import Nftables
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import (
    AnySink,
    Backend,
    DriftListener,
    Measure,
    Mode,
    OpenSocket,
    Owner,
    RefusedPackets,
)
from kubeproxy.modes.nftables.check import check
from kubeproxy.modes.nftables.cleanup import cleanup, retire
from kubeproxy.modes.nftables.describe import describe, item_lines
from kubeproxy.modes.nftables.items import ElementItem, Fragment, Item, ListenerItem, Value
from kubeproxy.modes.nftables.names import layout_of
from kubeproxy.modes.nftables.options import Options, options_of
from kubeproxy.modes.nftables.render import render
from kubeproxy.modes.nftables.rules.classes import DRAWS
from kubeproxy.modes.nftables.rules.refused import refused_of
from kubeproxy.modes.nftables.scaffold import scaffold
from kubeproxy.modes.nftables.sinks.localhost import LocalhostSink
from kubeproxy.modes.nftables.sinks.monitor import DriftMonitor, watch_table
from kubeproxy.modes.nftables.sinks.reading import read_counted
from kubeproxy.modes.nftables.sinks.table import OpenNftables, TableSink
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.types import ServicePlan

logger = get_logger(__name__)


class NftablesBackend(Backend[Item, Value, Options]):
    """Table `kube-proxy` of one family, and with an option listeners on localhost."""

    def __init__(
        self, family: Family, options: Options, open_nftables: OpenNftables = Nftables
    ) -> None:
        super().__init__(family, options)
        self._layout = layout_of(family)
        self._open_nftables = open_nftables
        self._table = TableSink(self._layout, open_nftables)
        self._localhost = LocalhostSink(family) if options.localhost_node_ports else None

    @property
    def sinks(self) -> Sequence[AnySink]:
        # The table comes last: it alone takes additions and removals in one transaction.
        return (self._table,) if self._localhost is None else (self._localhost, self._table)

    @property
    def kernel_sinks(self) -> Sequence[AnySink]:
        return (self._table,)

    def open_sockets(self, items: Mapping[Item, Value]) -> Sequence[OpenSocket]:
        loopback = self.family.loopback
        return [
            OpenSocket(item.protocol, loopback, item.port)
            for item in items
            if isinstance(item, ListenerItem)
        ]

    def scaffold(self, node: NodeFacts) -> Fragment:
        return scaffold(node, self.options)

    def rendering_facts(self, node: NodeFacts) -> NodeFacts:
        return planning_facts(node)

    def render(self, plan: ServicePlan, node: NodeFacts) -> Fragment:
        return render(plan, node, self.options)

    def describe(self, fragments: Mapping[Owner, Fragment]) -> str:
        return describe(self.family, fragments)

    def lines(self, items: Mapping[Item, Value]) -> Sequence[str]:
        return item_lines(items, self._layout)

    async def start(self, node: NodeFacts) -> None:
        if self._localhost is None and _includes_loopback(node):
            message = (
                "--nodeport-addresses includes localhost but localhost NodePorts are not supported"
            )
            logger.error(None, message, ipFamily=self.family.value)

    async def watch(self, drifted: DriftListener) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._table.strays.run(self._open_nftables, drifted))
            await watch_table(self._open_monitor, drifted)

    async def read_some(self, items: Collection[Item]) -> Mapping[Item, Value | None] | None:
        elements = [item for item in items if isinstance(item, ElementItem)]
        return await self._table.read_some(elements) if len(elements) == len(items) else None

    def _open_monitor(self) -> DriftMonitor:
        return DriftMonitor(self._layout)

    async def tick(self, now: float) -> float | None:
        return None if self._localhost is None else await self._localhost.retry()

    def measures(self) -> Sequence[Measure]:
        return () if self._localhost is None else self._localhost.measures()

    async def refused_packets(self, frontends: Frontends) -> Sequence[RefusedPackets] | None:
        if not self.options.counts_refused:
            return None
        # A socket of its own: a round may be using the other one.
        with closing(self._open_nftables(self._layout.number)) as nftables:
            counted = await asyncio.to_thread(read_counted, nftables)
        return refused_of(counted, frontends)

    async def close(self) -> None:
        self._table.close()
        if self._localhost is not None:
            await self._localhost.close()


def _includes_loopback(node: NodeFacts) -> bool:
    """Is loopback configured to serve node ports? "All addresses" does not count."""
    return not node.node_ports_match_all and any(map(is_loopback, node.node_port_addresses))


MODE = Mode(
    name="nftables",
    options=options_of,
    create=NftablesBackend,
    check=check,
    cleanup=cleanup,
    retire=retire,
    algorithms=frozenset(algorithm for algorithm in DRAWS if algorithm),
)
