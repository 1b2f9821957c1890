"""The iptables mode as the engine sees it: one instance for each family."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from msgspec import convert, to_builtins
from msgspec.structs import replace

from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.base import (
    AnyChange,
    Backend,
    DriftListener,
    Measure,
    Mode,
    Other,
    Owner,
    RefusedPackets,
)
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.check import allow_localhost_routing, check, probe_features
from kubeproxy.modes.iptables.cleanup import cleanup, retire
from kubeproxy.modes.iptables.describe import describe
from kubeproxy.modes.iptables.items import Fragment, Item, Value
from kubeproxy.modes.iptables.options import Features, Options, options_of
from kubeproxy.modes.iptables.render import render
from kubeproxy.modes.iptables.scaffold import SCOPE, scaffold
from kubeproxy.modes.iptables.sinks.canary import CanaryMonitor
from kubeproxy.modes.iptables.sinks.counters import ensure_counters, packets_of
from kubeproxy.modes.netfilter.describe import explained, item_lines
from kubeproxy.modes.netfilter.rules.refused import TABLE as REFUSING_TABLE
from kubeproxy.modes.netfilter.rules.refused import parse_refused
from kubeproxy.modes.netfilter.sinks.monitor import EditMonitor
from kubeproxy.modes.netfilter.sinks.others import other_rules
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.variant import resolve_variant
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.types import ServicePlan


class IptablesBackend(Backend[Item, Value, Options]):
    """Upstream's rules for one family."""

    def __init__(self, family: Family, options: Options) -> None:
        super().__init__(family, options)
        self.tables = Xtables(family, options.tools)
        self.netfilter = NetfilterSink(self.tables, SCOPE, before_read=self._keep_counters)
        self._is_started = False

    def use_features(self, features: Features) -> None:
        """Render for a host and tools with these features; without a probe, for a current host."""
        self.options = replace(self.options, features=features)

    @property
    def sinks(self) -> Sequence[NetfilterSink]:
        return (self.netfilter,)

    def explained(self, changes: Iterable[AnyChange]) -> Sequence[AnyChange]:
        return explained(changes)

    async def others(self) -> Sequence[Other]:
        return await other_rules(self.tables, SCOPE)

    def scaffold(self, node: NodeFacts) -> Fragment:
        return scaffold(node, self.options)

    def rendering_facts(self, node: NodeFacts) -> NodeFacts:
        return replace(node, addresses=(), service_cidrs=())

    def render(self, plan: ServicePlan, node: NodeFacts) -> Fragment:
        return render(plan, node, self.options)

    def describe(self, fragments: Mapping[Owner, Fragment]) -> str:
        return describe(fragments)

    def lines(self, items: Mapping[Item, Value]) -> Sequence[str]:
        return item_lines(items)

    def _keep_counters(self) -> None:
        """Create the counters again: a program that flushed the tables may have deleted them."""
        features = self.options.features
        if self._is_started and (features.has_invalid_counter or features.has_localhost_counter):
            ensure_counters()

    async def probe(self) -> None:
        self.use_features(await probe_features(self.tables, creates_counters=False))

    def probed(self) -> object:
        return to_builtins(self.options.features)

    def assume_probed(self, found: object) -> None:
        self.use_features(convert(found, Features))

    async def start(self, node: NodeFacts) -> None:
        self._is_started = True
        if self.options.serves_localhost(node):
            allow_localhost_routing()
        self.use_features(await probe_features(self.tables))

    def make_room(self) -> None:
        self.netfilter.sets_aside = True

    async def watch(self, drifted: DriftListener) -> None:
        """Notice edits by other programs, and by the canary a flush of all tables."""
        canary = CanaryMonitor(self.tables, self.options.sync_period_seconds, asyncio.sleep)
        async with asyncio.TaskGroup() as group:
            group.create_task(canary.run(drifted))
            group.create_task(EditMonitor(self.tables, self.netfilter).run(drifted))

    def measures(self) -> Sequence[Measure]:
        """Rules we own, and rules written since the last round, per table."""
        found = []
        for table in SCOPE.tables:
            labels = (("table", table),)
            total = self.netfilter.statistics.rules.get(table, 0)
            last = self.netfilter.take_written(table)
            found.append(Measure("kubeproxy_sync_proxy_rules_iptables_total", labels, total))
            found.append(Measure("kubeproxy_sync_proxy_rules_iptables_last", labels, last))
        return found

    async def refused_packets(self, frontends: Frontends) -> Sequence[RefusedPackets]:
        return parse_refused(await self.tables.save(REFUSING_TABLE, with_counters=True))

    def packet_count(self, name: str) -> int | None:
        features = self.options.features
        exists = {
            names.INVALID_COUNTER: features.has_invalid_counter,
            names.LOCALHOST_COUNTER: features.has_localhost_counter,
        }
        return packets_of(name) if exists.get(name) else None


MODE = Mode(
    name="iptables",
    options=options_of,
    create=IptablesBackend,
    check=check,
    cleanup=cleanup,
    retire=retire,
    resolve=resolve_variant,
    # What the `statistic` match can do; no match of iptables hashes addresses.
    algorithms=frozenset({Algorithm.RANDOM, Algorithm.ROUND_ROBIN}),
)
