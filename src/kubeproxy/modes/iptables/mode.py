"""The iptables mode of one family: pure rendering in front, sinks and canary behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
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
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.check import (
    allow_localhost_routing,
    check_families,
    make_counters,
    packets_of,
    probe_features,
)
from kubeproxy.modes.iptables.cleanup import cleanup
from kubeproxy.modes.iptables.describe import full_restore
from kubeproxy.modes.iptables.options import Features, Settings, settings_of
from kubeproxy.modes.iptables.render import render_items
from kubeproxy.modes.iptables.scaffold import SCOPE, scaffold_items
from kubeproxy.modes.iptables.sinks.canary import CanaryMonitor
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.plan.types import ServicePlan


class IptablesBackend(Backend):
    """Upstream's rules for one family."""

    mode: ClassVar[str] = "iptables"

    def __init__(self, family: Family, options: ModeOptions, *, variant: str = "") -> None:
        super().__init__(family, options)
        self.tables = Xtables(
            family, variant=variant, lock_timeout_seconds=options.xtables_lock_timeout_seconds
        )
        self.netfilter = NetfilterSink(self.tables, SCOPE, before_read=self._keep_counters)
        self._settings = settings_of(
            family, options, Features(is_tcp_liberal=options.tcp_be_liberal)
        )

    @property
    def settings(self) -> Settings:
        return self._settings

    def use_features(self, features: Features) -> None:
        """What host and tools can do; without a probe a current host is assumed."""
        self._settings = settings_of(self.family, self.options, features)

    @property
    def sinks(self) -> Sequence[Sink]:
        return (self.netfilter,)

    def scaffold(self, node: NodeFacts) -> Fragment:
        return scaffold_items(node, self._settings)

    def rendering_facts(self, node: NodeFacts) -> NodeFacts:
        return replace(node, addresses=(), service_cidrs=())

    def render(self, plan: ServicePlan, node: NodeFacts) -> Fragment:
        return render_items(plan, node, self._settings)

    def describe(self, fragments: Mapping[Owner, Fragment]) -> str:
        return full_restore(fragments)

    def _keep_counters(self) -> None:
        """Whoever flushed the tables may have flushed the counters our rules name."""
        features = self._settings.features
        if features.has_invalid_counter or features.has_localhost_counter:
            make_counters()

    async def start(self, node: NodeFacts) -> None:
        if self._settings.serves_localhost(node):
            allow_localhost_routing()
        self.use_features(await probe_features(self.tables))

    async def watch(self, drifted: DriftListener) -> None:
        monitor = CanaryMonitor(self.tables, self.options.sync_period_seconds, asyncio.sleep)
        await monitor.run(drifted)

    def measures(self) -> Sequence[Measure]:
        """Rules we own, and rules written since the last round, per table."""
        found = []
        for table in SCOPE.tables:
            labels = (("table", table),)
            total = self.netfilter.statistics.rules.get(table, 0)
            last = self.netfilter.take_written(table)
            found.append(Measure("sync_proxy_rules_iptables_total", labels, total))
            found.append(Measure("sync_proxy_rules_iptables_last", labels, last))
        return found

    def packet_count(self, name: str) -> int | None:
        features = self._settings.features
        exists = {
            names.INVALID_COUNTER: features.has_invalid_counter,
            names.LOCALHOST_COUNTER: features.has_localhost_counter,
        }
        return packets_of(name) if exists.get(name) else None


MODE = Mode(
    name="iptables",
    create=IptablesBackend,
    check=check_families,
    cleanup=cleanup,
    leftovers_of=("nftables", "ipvs", "userspace"),
)
