"""What happened in one round of the engine: an immutable value that `status` reads."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import Measure


class Failure(Struct, frozen=True):
    """One owner (or the round as a whole, with an empty owner) that could not be programmed."""

    owner: str
    message: str


class RoundReport(Struct, frozen=True):
    """The outcome of one round.

    `finished_at` is wall clock time in seconds; `duration_seconds` and `conntrack_seconds` are
    spans of steady time. `programming_latencies` are the seconds from each EndpointSlice trigger
    time to the end of this round, only when it succeeded.
    `no_local_internal`/`no_local_external` count service ports whose Local policy finds
    endpoints, but none on this node.
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
    failures: tuple[Failure, ...] = ()
    programming_latencies: tuple[float, ...] = ()
    no_local_internal: int = 0
    no_local_external: int = 0
    conntrack_seconds: float | None = None
    conntrack_deleted: int = 0
    measures: tuple[Measure, ...] = ()

    @property
    def is_success(self) -> bool:
        return not self.failures
