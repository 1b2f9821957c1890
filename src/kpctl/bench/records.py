"""What was measured, as values: single measurements, and records that compare two programs.

A record's ratio is how many times better we are than upstream, whatever the unit: for times, memory
and CPU it is upstream over ours, for rates it is ours over upstream. A measurement that was cut off
at a limit means "more than". Pure except for reading and writing the results file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

import msgspec

OURS = "ours"
UPSTREAM = "upstream"
DIRECT = "direct"

_RATES = frozenset({"connections/s", "Gbit/s", "changes/s"})


class Size(msgspec.Struct, frozen=True, order=True, gc=False):
    """How many services, with how many endpoints each."""

    services: int
    endpoints: int = 10

    def __str__(self) -> str:
        return f"{self.services} × {self.endpoints}"


def parse_size(text: str) -> Size:
    """Parse `5000` or `5kx50`, where k is a thousand."""
    services, _, endpoints = text.lower().replace("×", "x").replace(" ", "").partition("x")
    try:
        return Size(_number(services), _number(endpoints or "10"))
    except ValueError:
        raise ValueError(f"{text!r} is not a size such as 1000, 5k or 5kx50") from None


def _number(text: str) -> int:
    return int(text[:-1]) * 1000 if text.endswith("k") else int(text)


class Measurement(msgspec.Struct, frozen=True, gc=False):
    """One value, of one program, in one round."""

    mode: str
    name: str
    size: Size
    program: str
    value: float
    unit: str
    is_limit: bool = False
    """It took more than this: the measurement was cut off."""


class Record(msgspec.Struct, frozen=True):
    """All rounds of one measure, both programs: medians, spread, and how they compare."""

    name: str
    mode: str
    size: str
    ours: float | None
    upstream: float | None
    unit: str
    ratio: float | None
    rounds: int
    ours_spread: tuple[float, float] | None = None
    upstream_spread: tuple[float, float] | None = None
    direct: float | None = None
    """The same without any proxy, where that makes sense."""
    more_than: tuple[str, ...] = ()
    """Programs whose value is a limit at which they were cut off."""
    values: tuple[tuple[str, float, bool], ...] = ()
    """Every single one: program, value, whether it is a limit."""


class Growth(msgspec.Struct, frozen=True, gc=False):
    """Exponents of value ~ services ** exponent: flat is 0, linear 1, quadratic 2."""

    mode: str
    name: str
    ours: float | None
    upstream: float | None


class ModeFigures(msgspec.Struct, frozen=True):
    """What a mode's own benchmark printed, in sentences."""

    mode: str
    command: str
    lines: tuple[str, ...]
    problem: str = ""


class Run(msgspec.Struct, frozen=True):
    """One run: when, of which revision, and with which command."""

    started_at: str
    minutes: float
    revision: str
    command: str


class Results(msgspec.Struct, frozen=True):
    """Everything that was found, and where."""

    runs: tuple[Run, ...]
    machine: Mapping[str, str]
    records: tuple[Record, ...] = ()
    growth: tuple[Growth, ...] = ()
    notes: tuple[str, ...] = ()
    figures: tuple[ModeFigures, ...] = ()


def is_rate(unit: str) -> bool:
    """Is more better?"""
    return unit in _RATES


def summarise(measurements: Iterable[Measurement]) -> tuple[Record, ...]:
    """One record per mode, name and size, in order of first appearance."""
    grouped: dict[tuple[str, str, Size, str], list[Measurement]] = {}
    for found in measurements:
        grouped.setdefault((found.mode, found.name, found.size, found.unit), []).append(found)
    return tuple(_record(key, found) for key, found in grouped.items())


def _record(key: tuple[str, str, Size, str], found: Sequence[Measurement]) -> Record:
    mode, name, size, unit = key
    ours, upstream, direct = (
        [m for m in found if m.program == program] for program in (OURS, UPSTREAM, DIRECT)
    )
    cut = tuple(p for p, values in ((OURS, ours), (UPSTREAM, upstream)) if _is_cut(values))
    return Record(
        name=name,
        mode=mode,
        size=str(size),
        ours=_median(ours),
        upstream=_median(upstream),
        unit=unit,
        ratio=ratio(_median(ours), _median(upstream), unit),
        rounds=max(len(ours), len(upstream)),
        ours_spread=_spread(ours),
        upstream_spread=_spread(upstream),
        direct=_median(direct),
        more_than=cut,
        values=tuple((m.program, m.value, m.is_limit) for m in found),
    )


def _is_cut(found: Sequence[Measurement]) -> bool:
    """Is the median itself a limit?"""
    return sum(m.is_limit for m in found) * 2 > len(found)


def _median(found: Sequence[Measurement]) -> float | None:
    return median(m.value for m in found) if found else None


def _spread(found: Sequence[Measurement]) -> tuple[float, float] | None:
    values = [m.value for m in found]
    return (min(values), max(values)) if values else None


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent do not exceed."""
    if len(values) < 2:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def ratio(ours: float | None, upstream: float | None, unit: str) -> float | None:
    """How many times better ours is, or None where a value is missing."""
    if ours is None or upstream is None or ours <= 0 or upstream <= 0:
        return None
    return ours / upstream if is_rate(unit) else upstream / ours


def fit_exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """Fit (size, value) by least squares on logarithmic axes. None without two positive sizes."""
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread


def growth(records: Iterable[Record]) -> tuple[Growth, ...]:
    """Fit over sizes with ten endpoints, without values that were cut off."""
    grouped: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if parse_size(record.size).endpoints == 10:
            grouped.setdefault((record.mode, record.name), []).append(record)
    found = (
        Growth(
            mode,
            name,
            fit_exponent(_points(group, OURS, lambda r: r.ours)),
            fit_exponent(_points(group, UPSTREAM, lambda r: r.upstream)),
        )
        for (mode, name), group in grouped.items()
    )
    return tuple(g for g in found if g.ours is not None or g.upstream is not None)


def _points(
    records: Sequence[Record], program: str, value: Callable[[Record], float | None]
) -> list[tuple[float, float]]:
    return [
        (parse_size(record.size).services, found)
        for record in records
        if program not in record.more_than and (found := value(record)) is not None
    ]


def renew(old: Results, new: Results) -> Results:
    """Merge two runs of different programs or machines: what was measured again is replaced."""
    again = {(r.mode, r.name, r.size) for r in new.records}
    left = tuple(r for r in old.records if (r.mode, r.name, r.size) not in again)
    return merge(msgspec.structs.replace(old, records=left), new)


def merge(old: Results, new: Results) -> Results:
    """Merge two runs. What both measured is pooled, so that no repeat hides a bad round."""
    measured = [m for record in (*old.records, *new.records) for m in _measurements(record)]
    pooled = summarise(measured)
    known = {(r.mode, r.name, r.size) for r in pooled}
    # A record of an old file may lack its values. It stays until it is measured again.
    kept = [r for r in old.records if (r.mode, r.name, r.size) not in known]
    records = tuple(sorted((*kept, *pooled), key=lambda r: (r.mode, parse_size(r.size))))
    again = {found.mode for found in new.figures}
    return Results(
        runs=(*old.runs, *new.runs),
        machine=new.machine,
        records=records,
        growth=growth(records),
        notes=(*old.notes, *new.notes),
        figures=(*(f for f in old.figures if f.mode not in again), *new.figures),
    )


def _measurements(record: Record) -> list[Measurement]:
    size = parse_size(record.size)
    return [
        Measurement(record.mode, record.name, size, program, value, record.unit, is_limit)
        for program, value, is_limit in record.values
    ]


def write_results(path: Path, results: Results) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


def read_results(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)
