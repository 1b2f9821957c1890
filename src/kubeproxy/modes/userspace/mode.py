"""The userspace mode of one family: sockets and the process that serves them, rules behind.

Sinks in order: sockets before rules, so that nothing is ever diverted to a port where nobody
listens; removed the other way round.
"""

from __future__ import annotations

import asyncio
import random
import resource
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import Backend, DriftListener, Fragment, Mode, ModeOptions, Owner, Sink
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.modes.userspace.carrier.messages import Say
from kubeproxy.modes.userspace.check import check
from kubeproxy.modes.userspace.cleanup import cleanup
from kubeproxy.modes.userspace.describe import describe_fragments
from kubeproxy.modes.userspace.items import Learned, Listener, PortalOptions
from kubeproxy.modes.userspace.render import claim_of, render_items, used_pools
from kubeproxy.modes.userspace.rules.flows import stale_portal_flows
from kubeproxy.modes.userspace.scaffold import SCOPE, scaffold_items
from kubeproxy.modes.userspace.sinks.binding import Binder, listen_address
from kubeproxy.modes.userspace.sinks.ports import PortAllocator, parse_port_range
from kubeproxy.modes.userspace.sinks.sockets import SocketSink
from kubeproxy.plan.conntrack import Change as PlanChange
from kubeproxy.plan.conntrack import StaleRules
from kubeproxy.plan.types import ServicePlan

DESCRIPTORS = 64_000
"""What v1.25 asks for; every connection takes two."""
_RESTART_PAUSE_SECONDS = 1.0

logger = get_logger(__name__)


class UserspaceBackend(Backend):
    """Listeners, claims and portals of one family."""

    mode: ClassVar[str] = "userspace"

    def __init__(self, family: Family, options: ModeOptions, *, variant: str = "") -> None:
        super().__init__(family, options)
        self.tables = Xtables(
            family, variant=variant, lock_timeout_seconds=options.xtables_lock_timeout_seconds
        )
        self.netfilter = NetfilterSink(self.tables, SCOPE)
        address = listen_address(family, options.bind_address)
        self._portal_options = PortalOptions(
            address, serves_localhost=family is Family.IPV6 or options.localhost_node_ports
        )
        ports = PortAllocator(parse_port_range(options.userspace_port_range), random.randrange)
        self.sockets = SocketSink(
            Binder(family, address, ports), options.userspace_udp_idle_seconds, _hear
        )
        self._is_started = False

    @property
    def sinks(self) -> Sequence[Sink]:
        return (self.sockets, self.netfilter)

    def scaffold(self, node: NodeFacts) -> Fragment:
        return scaffold_items()

    def render(self, plan: ServicePlan, node: NodeFacts) -> Fragment:
        if plan.id.protocol is Protocol.SCTP:
            logger.error(None, "SCTP is not supported for user space proxy", service=str(plan.id))
        learned = self.sockets.learned if self._is_started else assumed(plan, node)
        return render_items(plan, node, learned, self._portal_options)

    def describe(self, fragments: Mapping[Owner, Fragment]) -> str:
        return describe_fragments(fragments)

    async def start(self, node: NodeFacts) -> None:
        allowed = raise_descriptor_limit(DESCRIPTORS)
        if allowed < DESCRIPTORS:
            logger.info("Fewer open files are allowed than wanted", allowed=allowed)
        await self.tables.probe()
        await self.sockets.revive()
        self._is_started = True

    def unsettled(self) -> Collection[Owner]:
        return self.sockets.take_unsettled()

    def stale_flows(self, changes: Sequence[PlanChange], node: NodeFacts) -> StaleRules:
        return stale_portal_flows(changes, node, self.sockets.learned, self.sockets.take_closed())

    async def watch(self, drifted: DriftListener) -> None:
        """Keep a carrier running, and look after the rules now and then."""
        while True:
            try:
                async with asyncio.timeout(self.options.sync_period_seconds):
                    await self.sockets.supervisor.wait_gone()
            except TimeoutError:
                await self._look_after(drifted)
            else:
                await self._revive()

    async def _revive(self) -> None:
        logger.error(None, "The carrier process ended with its connections; starting a new one")
        try:
            await self.sockets.revive()
        except KernelError as error:
            logger.error(error, "The carrier process could not be started")
        # Should it die again at once, do not spin.
        await asyncio.sleep(_RESTART_PAUSE_SECONDS)

    async def _look_after(self, drifted: DriftListener) -> None:
        if not await self._has_jumps():
            drifted("iptables was flushed: rules that lead to the portals are gone")
        elif self.sockets.retry_refused():
            drifted("a port that another program had is free now")

    async def _has_jumps(self) -> bool:
        """One jump of each table stands for all; a lock that cannot be had says nothing."""
        one_each = {jump.table: jump for jump, _ in SCOPE.jumps}
        try:
            for jump in one_each.values():
                rule = shlex.split(jump.rule)
                done = await self.tables.command("-C", jump.chain, "-t", jump.table, *rule)
                if not done.is_success:
                    return False
        except KernelError:
            return True
        return True

    async def close(self) -> None:
        await self.sockets.close()


def assumed(plan: ServicePlan, node: NodeFacts) -> Learned:
    """For showing what would be installed where nothing is bound: port 0 stands for any."""
    claims = {claim_of(frontend, plan, node): plan.id for frontend in plan.frontends}
    return Learned(
        {Listener(plan.id, pool): 0 for pool in used_pools(plan)},
        {claim: owner for claim, owner in claims.items() if claim is not None},
    )


def _hear(said: Say) -> None:
    logger.error(None, said.text, service=said.label)


def raise_descriptor_limit(wanted: int) -> int:
    """Allow this process, and the carrier after it, so many descriptors, or as many as we may.

    Never fewer than now. Fewer than wanted are no reason to fail: the carrier keeps within what it
    has, and says so when that is short.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(hard, wanted), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, limit)), limit))
        except (ValueError, OSError):
            continue
        break
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


MODE = Mode(
    name="userspace",
    create=UserspaceBackend,
    check=check,
    cleanup=cleanup,
    leftovers_of=("iptables", "nftables", "ipvs"),
)
