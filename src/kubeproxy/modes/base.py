"""The seams between the engine and a mode.

A mode is a folder: `render` and `scaffold` say what should exist (pure), its sinks make it so.
The engine owns the ledger, the order of sinks and the policy for errors; a mode owns nothing but
the meaning of its items.

    plan ──render──▶ fragment ──ledger──▶ changes ──compile──▶ batches ──apply──▶ kernel
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeAlias

from msgspec import Struct

from kubeproxy.facts.ids import Family, ServicePortId
from kubeproxy.facts.ids import Protocol as TransportProtocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.plan.conntrack import Change as PlanChange
from kubeproxy.plan.conntrack import StaleRules, stale_rules
from kubeproxy.plan.types import ServicePlan
from kubeproxy.sync import ledger
from kubeproxy.sync.report import Measure as Measure

Item: TypeAlias = Hashable
"""A thing in the kernel that is ours: its type says which sink it belongs to."""

Value: TypeAlias = object
"""What an item should be; compared with ==, never None."""

Fragment: TypeAlias = Mapping[Item, Value]
"""What one owner wants."""

Owner: TypeAlias = ServicePortId

Change: TypeAlias = ledger.Change[Owner, Item, Value]

SCAFFOLD = ServicePortId("", "", "", TransportProtocol.TCP)
"""The owner of what exists with no service at all; sorts before every service port."""


class Batch(Struct, frozen=True):
    """One bounded unit of work for a sink, and the changes it brings about.

    `payload` is the sink's own; `size` is its bytes, for reports and scale tests.
    """

    changes: tuple[Change, ...]
    payload: object
    size: int = 0


class Sink(Protocol):
    """One kind of kernel state: reads it, orders changes to it, applies a batch.

    `compile` is pure. It is given changes grouped by owner and keeps each owner's changes
    together as far as correctness allows, so that a culprit can be isolated.
    `apply` raises `Rejected` only if nothing of the batch took effect, `Busy` to be called again
    later, `Drifted` if the kernel's state is unknown or not what we believed.
    """

    name: str
    item_types: tuple[type, ...]

    async def read(self) -> Mapping[Item, Value]: ...

    def compile(self, changes: Sequence[Change]) -> Iterable[Batch]: ...

    async def apply(self, batch: Batch) -> None: ...


class ModeOptions(Struct, frozen=True):
    """What a mode may be told by configuration; the defaults are the configuration's defaults."""

    masquerade_bit: int = 14
    sync_period_seconds: float = 30.0
    min_sync_period_seconds: float = 1.0
    localhost_node_ports: bool = True
    tcp_be_liberal: bool = False
    bind_address: str = "0.0.0.0"
    ipvs_scheduler: str = ""
    ipvs_exclude_cidrs: tuple[str, ...] = ()
    ipvs_strict_arp: bool = False
    ipvs_tcp_timeout_seconds: int = 0
    ipvs_tcp_fin_timeout_seconds: int = 0
    ipvs_udp_timeout_seconds: int = 0
    ipvs_host_ports_on_cluster_ips: bool = False
    ipvs_drain_limit_seconds: float = 86400.0
    nftables_localhost_node_ports: bool = False
    userspace_port_range: str = ""
    userspace_udp_idle_seconds: float = 0.25
    xtables_lock_timeout_seconds: float = 5.0

    @property
    def masquerade_mark(self) -> int:
        return 1 << self.masquerade_bit

    @property
    def masquerade_mark_text(self) -> str:
        return f"0x{self.masquerade_mark:08x}"


DriftListener: TypeAlias = Callable[[str], None]
"""Called with a description of what somebody else changed; the engine then re-reads and repairs."""


class Backend(ABC):
    """One mode for one IP family."""

    mode: ClassVar[str]

    def __init__(self, family: Family, options: ModeOptions) -> None:
        self.family = family
        self.options = options

    @property
    @abstractmethod
    def sinks(self) -> Sequence[Sink]:
        """In dependency order: additions go forward, removals backward."""

    @abstractmethod
    def scaffold(self, node: NodeFacts) -> Fragment:
        """What exists with no service at all. Pure."""

    @abstractmethod
    def render(self, plan: ServicePlan, node: NodeFacts) -> Fragment:
        """The items one service port wants. Pure."""

    def rendering_facts(self, node: NodeFacts) -> NodeFacts:
        """What `render` is given of the node: all, unless a mode leaves out what it never reads.

        Then services are not rendered again when only that changes. The host's addresses change
        with every pod that starts here (its interface has one), so leaving them out pays.
        """
        return node

    @abstractmethod
    def describe(self, fragments: Mapping[Owner, Fragment]) -> str:
        """What these fragments would install, for people (`kpctl render`). Pure."""

    async def start(self, node: NodeFacts) -> None:  # noqa: B027 - doing nothing is common
        """Prepare the host for this family (probes, sysctls). Raises Unsupported."""

    async def watch(self, drifted: DriftListener) -> None:  # noqa: B027 - doing nothing is common
        """Run until cancelled, telling when somebody else changes what is ours."""

    def unsettled(self) -> Collection[Owner]:
        """Owners whose rendering depends on something an effect has just taught; asked after
        each pass, and rendered again in the same round."""
        return ()

    async def tick(self, now: float) -> float | None:
        """Do what is due at `now`; the seconds until the next call, or None."""
        return None

    def stale_flows(self, changes: Sequence[PlanChange], node: NodeFacts) -> StaleRules:
        """Which UDP flows the kernel must forget after these service ports have changed; a mode
        that translates flows to something other than endpoints says so here."""
        return stale_rules(changes, node)

    def measures(self) -> Sequence[Measure]:
        """Figures for the metrics, asked after each round."""
        return ()

    def packet_count(self, name: str) -> int | None:
        """Packets counted by a kernel accounting object of ours, if there is one of this name."""
        return None

    async def close(self) -> None:  # noqa: B027 - doing nothing is common
        """Release sockets and the like; what is in the kernel stays."""


class Mode(Struct, frozen=True):
    """A mode's entry in the registry.

    `check` raises Unsupported if the mode cannot run on this host. `cleanup` removes everything
    of this mode and nothing else, in the current network namespace, and returns what went wrong.
    `leftovers_of` are the modes whose leftovers go away when this one starts.
    """

    name: str
    create: Callable[[Family, ModeOptions], Backend]
    check: Callable[[Collection[Family], ModeOptions], Awaitable[None]]
    cleanup: Callable[[], Awaitable[Sequence[str]]]
    leftovers_of: tuple[str, ...] = ()
    runs_periodically: bool = False
    """Does it sync every syncPeriod even without a change (ipvs), rather than hourly?"""
