"""The nftables mode as the engine sees it: one instance for each family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kubeproxy.facts.address import is_loopback
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts, planning_facts
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import (
    Backend,
    DriftListener,
    Fragment,
    Measure,
    Mode,
    ModeOptions,
    Owner,
    Sink,
)
from kubeproxy.modes.nftables.check import check
from kubeproxy.modes.nftables.cleanup import cleanup
from kubeproxy.modes.nftables.describe import describe
from kubeproxy.modes.nftables.names import layout_of
from kubeproxy.modes.nftables.render import render
from kubeproxy.modes.nftables.scaffold import scaffold
from kubeproxy.modes.nftables.sinks.localhost import LocalhostSink, listener_items
from kubeproxy.modes.nftables.sinks.monitor import DriftMonitor
from kubeproxy.modes.nftables.sinks.table import OpenSocket, TableSink
from kubeproxy.plan.types import ServicePlan

logger = get_logger(__name__)


class NftablesBackend(Backend):
    """Table `kube-proxy` of one family."""

    mode = "nftables"

    def __init__(
        self, family: Family, options: ModeOptions, open_socket: OpenSocket | None = None
    ) -> None:
        super().__init__(family, options)
        self._layout = layout_of(family)
        self._table = TableSink(self._layout, *(() if open_socket is None else (open_socket,)))
        self._localhost: LocalhostSink | None = None
        self._sinks: tuple[Sink, ...] = (self._table,)
        if options.nftables_localhost_node_ports:
            # The table comes last: it alone takes additions and removals in one transaction.
            self._localhost = LocalhostSink(family)
            self._sinks = (self._localhost, self._table)

    @property
    def sinks(self) -> Sequence[Sink]:
        return self._sinks

    def scaffold(self, node: NodeFacts) -> Fragment:
        return scaffold(node, self.options.masquerade_mark)

    def rendering_facts(self, node: NodeFacts) -> NodeFacts:
        return planning_facts(node)

    def render(self, plan: ServicePlan, node: NodeFacts) -> Fragment:
        items = render(plan, node, self.options.masquerade_mark)
        return items if self._localhost is None else {**items, **listener_items(plan)}

    def describe(self, fragments: Mapping[Owner, Fragment]) -> str:
        return describe(self.family, fragments)

    async def start(self, node: NodeFacts) -> None:
        if self._localhost is None and _includes_loopback(node):
            message = (
                "--nodeport-addresses includes localhost but localhost NodePorts are not supported"
            )
            logger.error(None, message, ipFamily=self.family.value)

    async def watch(self, drifted: DriftListener) -> None:
        monitor = DriftMonitor(self._layout, self._table.socket.port_id)
        try:
            await monitor.run(drifted)
        finally:
            monitor.close()

    async def tick(self, now: float) -> float | None:
        return None if self._localhost is None else await self._localhost.retry()

    def measures(self) -> Sequence[Measure]:
        return () if self._localhost is None else self._localhost.measures()

    async def close(self) -> None:
        self._table.close()
        if self._localhost is not None:
            await self._localhost.close()


def _includes_loopback(node: NodeFacts) -> bool:
    """Was loopback asked for? "All addresses" does not count as asking."""
    return not node.node_ports_match_all and any(map(is_loopback, node.node_port_addresses))


MODE = Mode(
    name="nftables",
    create=NftablesBackend,
    check=check,
    cleanup=cleanup,
    leftovers_of=("iptables", "ipvs", "userspace"),
)
