"""The seam between the engine and a mode.

A mode is a folder with the same files in every case: `render` and `scaffold` say what should
exist (pure), `compile` orders changes into batches (pure), the sinks apply a batch (I/O), and
`mode.py` ties them together as a `Backend`. The engine owns the ledger, the order of sinks and
the policy for errors; a mode owns the meaning of its items.

    plan ──render──▶ fragment ──ledger──▶ changes ──compile──▶ batches ──apply──▶ kernel

Types: a mode declares its items and values in `items.py` and is typed with them throughout. The
engine never looks inside an item, so on its side they are `AnyItem` and `AnyValue`; `changes_of`
and `items_of` are the two places where a mode gets its own types back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

from msgspec import Struct

from kubeproxy.config.flags import Extensions
from kubeproxy.config.types import KubeProxyConfiguration
from kubeproxy.facts.ids import Family, ServicePortId
from kubeproxy.facts.ids import Protocol as TransportProtocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.policy import Algorithm
from kubeproxy.plan.conntrack import FlowRules, Socket, flow_rules
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.types import ServicePlan

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

O = TypeVar("O", bound="SupportsRichComparison")  # noqa: E741 - owner, item, value: O, I, V
I = TypeVar("I", bound=Hashable)  # noqa: E741 - as above
V = TypeVar("V")
P = TypeVar("P")
K = TypeVar("K", bound=Hashable)
Options = TypeVar("Options")

Owner: TypeAlias = ServicePortId

SCAFFOLD = ServicePortId("", "", "", TransportProtocol.TCP)
"""The owner of what exists with no service at all; sorts before every service port."""

AnyItem: TypeAlias = Hashable
"""A thing in the kernel that is ours: its type says which sink it belongs to."""

AnyValue: TypeAlias = object
"""What an item should be; compared with ==, never None."""

AnyFragment: TypeAlias = Mapping[AnyItem, AnyValue]
"""What one owner wants."""


class OwnedChange(Struct, Generic[O, I, V], frozen=True):
    """One item that must change: `old` is believed to be there, `new` is wanted; None is absent.

    `owner` is whom to blame: the one whose value is wanted, or who gave the item up.
    """

    owner: O | None
    item: I
    old: V | None
    new: V | None


Change: TypeAlias = OwnedChange[Owner, I, V]

AnyChange: TypeAlias = OwnedChange[Owner, Any, Any]
"""A change as the engine passes it on; Any because changes of different types share a list."""


def changes_of(
    changes: Iterable[AnyChange], item_type: type[I], _value_type: type[V]
) -> list[Change[I, V]]:
    """The changes to items of one type, in order, typed with the value that such items have."""
    found = [change for change in changes if isinstance(change.item, item_type)]
    return cast("list[Change[I, V]]", found)


def items_of(fragment: Mapping[K, object], item_type: type[I], _value_type: type[V]) -> dict[I, V]:
    """The items of one type in a fragment, typed with the value that such items have."""
    found = {item: value for item, value in fragment.items() if isinstance(item, item_type)}
    return cast("dict[I, V]", found)


class Batch(Struct, Generic[P], frozen=True):
    """One bounded unit of work for a sink, and the changes it brings about.

    `payload` is ready to be sent; `size` is its bytes, for reports and scale tests.
    """

    changes: tuple[AnyChange, ...]
    payload: P
    size: int = 0


class Sink(Protocol[I, V, P]):
    """One kind of kernel state: reads it, compiles changes to it, applies a batch.

    `compile` does everything that needs no I/O. It is given changes grouped by owner and keeps
    each owner's changes together as far as correctness allows, so that a culprit can be isolated.
    It is consumed lazily: a batch is asked for after the one before has been applied, and what a
    sink remembers from `read` and `apply` (such as where a rule stands in a shared chain) may
    shape it.

    `apply` sends one payload. Compiling and applying the same changes again, whole or in part,
    must be harmless: the engine does so to isolate a culprit and after a doubtful end. It raises
        Rejected  part of the batch is refused; if the sink is transactional, nothing of the
                  batch took effect
        Busy      try again later
        Drifted   the kernel is not as believed, or its state is unknown
    """

    name: str
    item_types: tuple[type, ...]
    is_transactional: bool
    """Does a refused batch leave the kernel as it was?"""

    async def read(self) -> Mapping[I, V]: ...

    def compile(self, changes: Sequence[Change[I, V]]) -> Iterator[Batch[P]]: ...

    async def apply(self, batch: Batch[P]) -> None: ...


AnySink: TypeAlias = Sink[Any, Any, Any]
"""A sink as the engine holds it: sinks of different types share a list."""


class Measure(Struct, frozen=True):
    """A figure of the mode: the whole metric name, and labels without the family."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    value: float


class OpenSocket(Struct, frozen=True):
    """A socket on which a mode serves."""

    protocol: TransportProtocol
    address: str
    port: int


class Other(Struct, frozen=True):
    """Something of another program in the way of our packets: where, and what it is."""

    hook: str
    priority: int
    what: str


class CarriedCount(Struct, frozen=True, gc=False):
    """Connections of one service port to one endpoint that the mode itself carries.

    `open` counts those that exist, `total` all since the process that carries them began.
    """

    owner: Owner
    endpoint: str
    open: int
    total: int


class CarriedFlow(Struct, frozen=True, gc=False):
    """One connection that the mode itself carries."""

    owner: Owner
    client: str
    endpoint: str


class Carried(Struct, frozen=True):
    """What a mode carries itself. `is_cut`: there is more than is shown."""

    counts: tuple[CarriedCount, ...]
    flows: tuple[CarriedFlow, ...] = ()
    is_cut: bool = False


class RefusedPackets(Struct, frozen=True, gc=False):
    """Packets to one service port that a rule of ours rejected or dropped, and why.

    The kernel counts from when the rule was written, so the number may fall back to 0.
    """

    owner: Owner
    action: str
    reason: str
    packets: int


NO_ENDPOINTS = "has no endpoints"
NO_LOCAL_ENDPOINTS = "has no local endpoints"
OUTSIDE_SOURCE_RANGES = "source is not in loadBalancerSourceRanges"
REFUSED_BY_ANNOTATION = "source is refused by annotation"
"""Reasons, in the words of the comments that rules of iptables have."""


class DriftListener(Protocol):
    """Called with a description of what another process changed; the engine repairs it.

    `items` are all that may differ, as `Backend.read_some` takes them. None: it may be anything.
    `noticed_at` is when the last of it was noticed, by the steady clock, if not now.
    """

    def __call__(
        self, what: str, items: Collection[Any] | None = None, noticed_at: float | None = None
    ) -> None: ...


_MOST_NAMED = 3


def by_whom(processes: Collection[str]) -> str:
    """End a description of a change with those who made it; empty if none is known."""
    if not processes:
        return ""
    more = len(processes) - _MOST_NAMED
    named = list(processes)[:_MOST_NAMED] + ([f"{more} more"] if more > 0 else [])
    return f" by {' and '.join(named)}"


class Backend(ABC, Generic[I, V, Options]):
    """One mode for one IP family."""

    carries = False
    """Does this process carry connections itself, so that they end with it?"""

    def __init__(self, family: Family, options: Options) -> None:
        self.family = family
        self.options = options

    @property
    @abstractmethod
    def sinks(self) -> Sequence[AnySink]:
        """In dependency order: additions go forward, removals backward."""

    @property
    def kernel_sinks(self) -> Sequence[AnySink]:
        """Those that any process can read. The others hold sockets of the process that applied."""
        return self.sinks

    def open_sockets(self, items: Mapping[I, V]) -> Sequence[OpenSocket]:
        """The sockets that these items mean, as far as another process can see them. Pure."""
        return ()

    def is_under_way(self, change: AnyChange) -> bool:
        """Is this difference a step of ours that takes its time, and no drift?"""
        return False

    def explained(self, changes: Iterable[AnyChange]) -> Sequence[AnyChange]:
        """These differences as people should see them: without what only seems to differ. Pure."""
        return list(changes)

    async def others(self) -> Sequence[Other]:
        """What other programs have where packets meet us, as far as it is not in nf_tables.

        Read from the kernel; nothing is changed.
        """
        return ()

    @abstractmethod
    def scaffold(self, node: NodeFacts) -> Mapping[I, V]:
        """What exists with no service at all. Pure."""

    @abstractmethod
    def render(self, plan: ServicePlan, node: NodeFacts) -> Mapping[I, V]:
        """The items one service port wants. Pure."""

    def rendering_facts(self, node: NodeFacts) -> NodeFacts:
        """What `render` is given of the node: all, unless a mode leaves out what it never reads.

        Then services are not rendered again when only that changes. The host's addresses change
        with every pod that starts here (its interface has one), so leaving them out pays.
        """
        return node

    @abstractmethod
    def describe(self, fragments: Mapping[Owner, Mapping[I, V]]) -> str:
        """What these fragments would install, for people (`kpctl render`). Pure."""

    def lines(self, items: Mapping[I, V]) -> Sequence[str]:
        """These items one by one as lines, for people (`apply --dry-run`, `explain`). Pure.

        A line of a Service's own names it in a comment, as far as the kernel keeps one.
        """
        return [f"{item}: {value}" for item, value in items.items()]

    async def probe(self) -> None:
        """Find out what tools and kernel can do, where rendering depends on it. Change nothing."""

    def probed(self) -> object:
        """What `probe` has found out, as plain data; None if rendering depends on nothing."""
        return None

    def assume_probed(self, found: object) -> None:
        """Render as on the host where `probe` has found this out."""

    async def start(self, node: NodeFacts) -> None:
        """Prepare the host for this family (probes, sysctls). Raises Unsupported."""

    def make_room(self) -> None:
        """Let rules of another mode serve beside ours, because they are retired once we serve."""

    async def watch(self, drifted: DriftListener) -> None:
        """Run until cancelled; call `drifted` when another process changes what is ours."""

    async def read_some(self, items: Collection[I]) -> Mapping[I, V | None] | None:
        """What the kernel holds of these items; None stands for one that is not there.

        Return None where a mode cannot ask for single items, or would be slower: then everything
        is read. Raises KernelError.
        """
        return None

    def unsettled(self) -> Collection[Owner]:
        """Owners whose rendering depends on something just learned from an effect.

        Asked after each pass; they are rendered again in the same round.
        """
        return ()

    def learned(self, plan: ServicePlan, node: NodeFacts) -> object:
        """What rendering this plan depends on besides its arguments, as plain data; None: nothing.

        With it, `assume` makes a backend in another process render the same.
        """
        return None

    def assume(self, plan: ServicePlan, node: NodeFacts, learned: object) -> None:
        """Render this plan as the backend does that has learned this."""

    async def tick(self, now: float) -> float | None:
        """Do what is due at `now`. Return the seconds until the next call, or None."""
        return None

    def without_local_endpoints(self, plans: Sequence[ServicePlan]) -> tuple[int, int]:
        """What one Service adds to `no_local_endpoints`, by internal and by external policy.

        Counted are service ports whose Local policy finds endpoints, but none on this node.
        """
        served = [plan for plan in plans if plan.has_endpoints]
        internal = sum(not plan.has_internal for plan in served)
        return internal, sum(not plan.has_external for plan in served)

    def flow_rules(self, plan: ServicePlan | None, node: NodeFacts) -> FlowRules:
        """What the flows of a service port are like while the kernel has this plan.

        Asked before a change for what was, and after it for what is. A mode that translates flows
        to something other than endpoints overrides this.
        """
        return flow_rules(plan)

    def measures(self) -> Sequence[Measure]:
        """Figures for the metrics, asked after each round."""
        return ()

    async def carried(self, most_flows: int) -> Carried | None:
        """Connections that the mode itself carries, some of them one by one; None: the kernel does.

        Raises KernelError.
        """
        return None

    async def refused_packets(self, frontends: Frontends) -> Sequence[RefusedPackets] | None:
        """What the kernel counted of refused packets; None: in this configuration it does not.

        `frontends` say whose a place is that the kernel counted. Raises KernelError.
        """
        return None

    def packet_count(self, name: str) -> int | None:
        """Packets counted by a kernel accounting object of ours, if there is one of this name."""
        return None

    async def hand_over(self) -> None:
        """Carry on what this process carries until another proxy has taken over, and it has ended.

        Nothing else of the backend runs any more.
        """

    async def close(self) -> None:
        """Release sockets and the like; what is in the kernel stays."""


AnyBackend: TypeAlias = Backend[Any, Any, Any]
"""A backend as the engine holds it, whatever its mode."""


class Running(Struct, frozen=True):
    """The mode that serves now, in place of one that is to go.

    `is_patient`: may what open connections of the other mode still need stay until they end?
    """

    mode: str
    backends: tuple[AnyBackend, ...]
    is_patient: bool = False


class Retired(Struct, frozen=True):
    """What became of a mode that another one has replaced.

    `problems` are what could not be removed, in words. `connections` are open ones for which a part
    of it stays. UDP flows that were sent to `untranslated` must be forgotten:
    nothing translates them any more.
    """

    problems: tuple[str, ...] = ()
    connections: int = 0
    untranslated: Mapping[Family, frozenset[Socket]] = {}


async def _as_given(extensions: Extensions) -> Extensions:
    return extensions


class Mode(Struct, Generic[Options], frozen=True):
    """A mode's entry in the registry.

    `resolve` looks once, at start, for what an extension flag leaves to the host. `options` picks
    what the mode reads of configuration and extension flags. `check` raises Unsupported if the
    mode cannot run on this host. `cleanup` removes everything of this mode and nothing else, in
    the current network namespace, and returns what went wrong. `retire` removes it while another
    mode serves (or the same one by other tools), and leaves what that one wants. `algorithms` are
    those a Service may ask for; plans name no other.
    """

    name: str
    options: Callable[[KubeProxyConfiguration, Extensions], Options]
    create: Callable[[Family, Options], AnyBackend]
    check: Callable[[Collection[Family], Options], Awaitable[None]]
    cleanup: Callable[[], Awaitable[Sequence[str]]]
    retire: Callable[[Running], Awaitable[Retired]]
    algorithms: frozenset[Algorithm] = frozenset()
    resolve: Callable[[Extensions], Awaitable[Extensions]] = _as_given
    runs_periodically: bool = False
    """Does it sync every syncPeriod even without a change (ipvs), rather than hourly?"""


AnyMode: TypeAlias = Mode[Any]
"""A mode as the registry returns it."""
