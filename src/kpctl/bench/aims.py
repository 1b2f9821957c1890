"""What the benchmarks should reach, as data, and whether a run reached it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kpctl.bench.records import UPSTREAM, Record, Size


class Aim(msgspec.Struct, frozen=True, gc=False):
    """A ratio wanted at a size."""

    mode: str
    name: str
    size: Size
    ratio: float
    words: str


AIMS = (
    Aim("nftables", "cold start", Size(10000), 5, "cold start 5 × faster"),
    Aim("nftables", "endpoint replaced", Size(10000), 100, "one endpoint 100 × faster"),
    Aim("nftables", "memory after cold start", Size(10000), 2, "half the memory"),
    Aim(
        "iptables",
        "endpoint replaced",
        Size(5000),
        1 / 0.6,
        "one endpoint at most 0.6 × of upstream's partial sync",
    ),
)


class AimResult(msgspec.Struct, frozen=True, gc=False):
    """An aim and the ratio that was measured."""

    aim: Aim
    ratio: float | None
    is_at_least: bool = False
    """Upstream was cut off: the true ratio is larger."""

    @property
    def is_met(self) -> bool | None:
        """None if it was not measured, or is uncertain."""
        if self.ratio is None:
            return None
        return self.ratio >= self.aim.ratio or (None if self.is_at_least else False)


def check_aims(records: Iterable[Record]) -> tuple[AimResult, ...]:
    """Compare every aim with what was measured."""
    known = {(r.mode, r.name, r.size): r for r in records}
    return tuple(_result(aim, known.get((aim.mode, aim.name, str(aim.size)))) for aim in AIMS)


def _result(aim: Aim, record: Record | None) -> AimResult:
    if record is None:
        return AimResult(aim, None)
    return AimResult(aim, record.ratio, UPSTREAM in record.more_than)
