"""The ipvs mode as the engine sees it: one instance for each family.

Sinks in dependency order: sets, the rules that match them, virtual servers, and last the addresses
that bring traffic to them. Removal goes the other way, so no packet meets a half-built service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import Backend, Fragment, Mode, ModeOptions, Owner, Sink
from kubeproxy.modes.ipvs.check import check, set_sysctls, set_timeouts
from kubeproxy.modes.ipvs.cleanup import cleanup
from kubeproxy.modes.ipvs.describe import describe
from kubeproxy.modes.ipvs.render import (
    DEFAULT_SCHEDULER,
    RenderSettings,
    facts_used,
    render_plan,
    render_scaffold,
)
from kubeproxy.modes.ipvs.rules.chains import scope
from kubeproxy.modes.ipvs.sinks.addresses import AddressSink
from kubeproxy.modes.ipvs.sinks.servers import ServerSink
from kubeproxy.modes.ipvs.sinks.sets import SetSink
from kubeproxy.modes.ipvs.sinks.tables import KernelTables, Tables
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.xtables import Tables as RuleTables
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.plan.types import ServicePlan

logger = get_logger(__name__)


class IpvsBackend(Backend):
    """Virtual servers of one family."""

    mode: ClassVar[str] = "ipvs"

    def __init__(
        self,
        family: Family,
        options: ModeOptions,
        *,
        tables: Tables | None = None,
        rules: RuleTables | None = None,
    ) -> None:
        super().__init__(family, options)
        self._tables = tables or KernelTables()
        lock_timeout = options.xtables_lock_timeout_seconds
        self._xtables = Xtables(family, lock_timeout_seconds=lock_timeout)
        sets = SetSink(self._tables, family)
        self._netfilter = NetfilterSink(rules or self._xtables, scope(family))
        self._servers = ServerSink(
            self._tables,
            family,
            sets,
            exclude_cidrs=options.ipvs_exclude_cidrs,
            drain_limit_seconds=options.ipvs_drain_limit_seconds,
        )
        addresses = AddressSink(self._tables, family)
        self._sinks: tuple[Sink, ...] = (sets, self._netfilter, self._servers, addresses)
        self._settings = RenderSettings(
            family=family,
            scheduler=options.ipvs_scheduler or DEFAULT_SCHEDULER,
            mark=options.masquerade_mark_text,
            allows_host_ports=options.ipvs_host_ports_on_cluster_ips,
        )

    @property
    def sinks(self) -> Sequence[Sink]:
        return self._sinks

    def scaffold(self, node: NodeFacts) -> Fragment:
        return render_scaffold(node, self._settings)

    def render(self, plan: ServicePlan, node: NodeFacts) -> Fragment:
        return render_plan(plan, node, self._settings)

    def rendering_facts(self, node: NodeFacts) -> NodeFacts:
        return facts_used(node)

    def describe(self, fragments: Mapping[Owner, Fragment]) -> str:
        return describe(fragments)

    async def start(self, node: NodeFacts) -> None:
        set_sysctls(self.options)
        set_timeouts(self.options)
        version = await self._xtables.probe()
        self._settings = replace(self._settings, has_random_fully=version.has_random_fully)

    async def tick(self, now: float) -> float | None:
        """Let go of real servers that have become idle."""
        try:
            self._servers.drain(now)
        except KernelError as error:
            logger.error(error, "Try delete rs failed; trying again in a minute")
        return self._servers.draining.seconds_left(now)

    async def close(self) -> None:
        self._tables.close()


MODE = Mode(
    name="ipvs",
    create=IpvsBackend,
    check=check,
    cleanup=cleanup,
    leftovers_of=("iptables", "nftables", "userspace"),
    runs_periodically=True,
)
