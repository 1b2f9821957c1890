"""The ipvs mode as the engine sees it: one instance for each family.

Sinks in dependency order: sets, the rules that match them, virtual servers, and last the addresses
that bring traffic to them. Removal goes the other way, so no packet meets a half-built service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import convert
from msgspec.structs import replace

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import (
    AnyChange,
    AnySink,
    Backend,
    DriftListener,
    Mode,
    Other,
    Owner,
    RefusedPackets,
)
from kubeproxy.modes.ipvs.check import check, set_sysctls, set_timeouts
from kubeproxy.modes.ipvs.cleanup import cleanup, retire
from kubeproxy.modes.ipvs.describe import address_lines, describe, server_lines, set_lines
from kubeproxy.modes.ipvs.items import Fragment, Item, Value, VirtualServer, is_draining
from kubeproxy.modes.ipvs.names import COUNTING_SETS, FILTER, set_name
from kubeproxy.modes.ipvs.options import Options, options_of
from kubeproxy.modes.ipvs.render import (
    render,
    rendering_facts,
    services_without_local_endpoints,
)
from kubeproxy.modes.ipvs.rules.refused import refused_by_out_filter, refused_in_set
from kubeproxy.modes.ipvs.rules.scheduling import ALGORITHMS
from kubeproxy.modes.ipvs.scaffold import scaffold, scope
from kubeproxy.modes.ipvs.sinks.addresses import AddressSink
from kubeproxy.modes.ipvs.sinks.draining import PASS_SECONDS
from kubeproxy.modes.ipvs.sinks.servers import ServerSink
from kubeproxy.modes.ipvs.sinks.sets import SetSink
from kubeproxy.modes.ipvs.sinks.tables import KernelTables, Tables
from kubeproxy.modes.netfilter.describe import explained, item_lines
from kubeproxy.modes.netfilter.sinks.monitor import EditMonitor
from kubeproxy.modes.netfilter.sinks.others import other_rules
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.variant import resolve_variant
from kubeproxy.modes.netfilter.sinks.xtables import Tables as RuleTables
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.types import ServicePlan

logger = get_logger(__name__)


class IpvsBackend(Backend[Item, Value, Options]):
    """Virtual servers of one family."""

    def __init__(
        self,
        family: Family,
        options: Options,
        *,
        tables: Tables | None = None,
        rules: RuleTables | None = None,
    ) -> None:
        super().__init__(family, options)
        self._tables = tables or KernelTables()
        self._xtables = Xtables(family, options.tools)
        sets = SetSink(self._tables, family)
        self._netfilter = NetfilterSink(rules or self._xtables, scope(family))
        self._servers = ServerSink(self._tables, family, sets, options)
        addresses = AddressSink(self._tables, family)
        self._sinks: tuple[AnySink, ...] = (
            sets,
            self._netfilter,
            self._servers,
            addresses,
        )

    @property
    def sinks(self) -> Sequence[AnySink]:
        return self._sinks

    def is_under_way(self, change: AnyChange) -> bool:
        return isinstance(change.item, VirtualServer) and is_draining(change.old, change.new)

    def explained(self, changes: Iterable[AnyChange]) -> Sequence[AnyChange]:
        return explained(changes)

    async def others(self) -> Sequence[Other]:
        return await other_rules(self._netfilter.tables, self._netfilter.scope)

    def scaffold(self, node: NodeFacts) -> Fragment:
        return scaffold(node, self.options)

    def render(self, plan: ServicePlan, node: NodeFacts) -> Fragment:
        return render(plan, node, self.options)

    def rendering_facts(self, node: NodeFacts) -> NodeFacts:
        return rendering_facts(node)

    def describe(self, fragments: Mapping[Owner, Fragment]) -> str:
        return describe(fragments)

    def lines(self, items: Mapping[Item, Value]) -> Sequence[str]:
        return [*server_lines(items), *set_lines(items), *address_lines(items), *item_lines(items)]

    def without_local_endpoints(self, plans: Sequence[ServicePlan]) -> tuple[int, int]:
        return services_without_local_endpoints(plans)

    async def probe(self) -> None:
        version = await self._xtables.probe()
        self.options = replace(self.options, has_random_fully=version.has_random_fully)

    def probed(self) -> object:
        return {"has_random_fully": self.options.has_random_fully}

    def assume_probed(self, found: object) -> None:
        self.options = replace(self.options, **convert(found, dict[str, bool]))

    async def start(self, node: NodeFacts) -> None:
        set_sysctls(self.options)
        set_timeouts(self.options)
        await self.probe()

    def make_room(self) -> None:
        self._netfilter.sets_aside = True

    async def watch(self, drifted: DriftListener) -> None:
        """Notice when another program edits our iptables rules."""
        await EditMonitor(self._xtables, self._netfilter).run(drifted)

    async def tick(self, now: float) -> float | None:
        """Delete real servers that have drained."""
        try:
            self._servers.drain(now)
        except KernelError as error:
            logger.error(error, "Try delete rs failed; trying again in a minute")
            return PASS_SECONDS
        return self._servers.draining.seconds_left(now)

    async def refused_packets(self, frontends: Frontends) -> Sequence[RefusedPackets] | None:
        if not self.options.counts_refused:
            return None
        found: list[RefusedPackets] = []
        for name in COUNTING_SETS:
            counted = self._tables.ipset.counters(set_name(self.family, name))
            found += refused_in_set(name, counted, frontends)
        saved = await self._xtables.save(FILTER, with_counters=True)
        return [*found, *refused_by_out_filter(saved, frontends)]

    async def close(self) -> None:
        self._tables.close()


MODE = Mode(
    name="ipvs",
    options=options_of,
    create=IpvsBackend,
    check=check,
    cleanup=cleanup,
    retire=retire,
    resolve=resolve_variant,
    algorithms=ALGORITHMS,
    runs_periodically=True,
)
