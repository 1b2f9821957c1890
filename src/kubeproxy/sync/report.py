"""What happened in one round, or in one search for stale flows: values that `status` reads."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.modes.base import Measure, Owner


class Refusal(Struct, frozen=True):
    """Why a port of a Service, or the whole Service, could not be programmed.

    The owner is None for items that nothing wants any more.
    """

    owner: Owner | ServiceName | None
    message: str

    @property
    def service(self) -> ServiceName | None:
        return self.owner if isinstance(self.owner, ServiceName | None) else self.owner.service

    @property
    def text(self) -> str:
        return self.message if self.owner is None else f"{self.owner}: {self.message}"


class RoundReport(Struct, frozen=True):
    """The outcome of one round.

    `finished_at` is wall clock time in seconds, `duration_seconds` a span of steady time.
    `programming_latencies` are the seconds from each EndpointSlice trigger time to the end of this
    round, of the Services that are programmed now.

    `drifted_items` counts items that another process changed, `drift` is what was noticed of it,
    and `drifted_lines` shows the first of them as a diff from what was found to what is wanted.

    `error` is why the round failed as a whole: what the kernel holds is then unknown. `refused` are
    the owners that the kernel refused in a round that is otherwise done; `held_back` counts all
    that are refused at present, tried in this round or not.
    `no_local_internal`/`no_local_external` count service ports (in ipvs mode Services) whose Local
    policy finds endpoints, but none on this node.
    """

    family: Family
    is_full: bool
    finished_at: float
    duration_seconds: float
    services: int = 0
    changes: int = 0
    batches: int = 0
    bytes_sent: int = 0
    drifted_items: int = 0
    drift: str = ""
    drifted_lines: tuple[str, ...] = ()
    error: str = ""
    refused: tuple[Refusal, ...] = ()
    held_back: int = 0
    programming_latencies: tuple[float, ...] = ()
    no_local_internal: int = 0
    no_local_external: int = 0
    measures: tuple[Measure, ...] = ()

    @property
    def is_done(self) -> bool:
        """Is everything programmed, except for the owners that were refused?"""
        return not self.error

    @property
    def is_success(self) -> bool:
        return not self.error and not self.refused

    @property
    def failure_text(self) -> str:
        """What went wrong, for people; empty after a success."""
        return "; ".join(filter(None, (self.error, *(refusal.text for refusal in self.refused))))


class FlowReport(Struct, frozen=True):
    """The outcome of one search for stale flows.

    `reset` counts the deleted flows whose clients are to notice, because their Service asks for
    that, and `closed` the sockets of this node among them. `owed` counts the service ports whose
    flows must still be looked through. `error` is why not the whole table was seen, `refused` why
    some flows could not be deleted, and `unclosed` why sockets could not be closed.
    """

    family: Family
    finished_at: float
    seconds: float
    deleted: int = 0
    reset: int = 0
    closed: int = 0
    owed: int = 0
    error: str = ""
    refused: tuple[str, ...] = ()
    unclosed: str = ""
