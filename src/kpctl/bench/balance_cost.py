"""What an algorithm costs: one change to a Service, and one connection, beside the default.

Variants take turns within one run, so that whatever else the machine does hits all of them, each
time in another order: what comes after a large change finds the processor's caches full of it.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from msgspec import Struct

from kpctl.bench.balance_field import (
    CONTROL,
    DEFAULT,
    Field,
    Variant,
    connect,
    field_of,
    variants_of,
)
from kpctl.bench.records import Size
from kpctl.bench.world import Site

_SPARE = 64
_WARM_UP = 20


class Spent(Struct, frozen=True, gc=False):
    """What something took: time on the clock, and processor time."""

    clock: float
    processor: float


class Cost(Struct, frozen=True, gc=False):
    """What one variant took, beside what the default took.

    On a busy machine only processor time compares: that of this process, of its tools and of what
    the kernel does for it. A user-mode kernel counts it in ticks, and has none to show.
    """

    mode: str
    what: str
    size: Size
    variant: str
    value: Spent
    default: Spent
    unit: str
    more: str = ""

    def __str__(self) -> str:
        text = self._beside(self.value.clock, self.default.clock)
        if self.default.processor:
            processor = self._beside(self.value.processor, self.default.processor)
            text += f"; processor time {processor}"
        return f"{self.mode}, {self.what}, {self.size}, {self.variant}: {text}{self.more}"

    def _beside(self, value: float, default: float) -> str:
        beside = f", {value / default - 1:+.1%}" if self.variant != DEFAULT.name else ""
        return f"{value:.3g} {self.unit}{beside}"


async def costs(mode: str, size: Size, *, changes: int, connects: int) -> list[Cost]:
    """Measure all variants of a mode in one network, and the default twice."""
    variants = (*variants_of(mode), CONTROL)
    async with field_of(mode, size, variants) as (site, field):
        gc.collect()
        gc.freeze()
        try:
            found = await _changes(field, mode, size, changes)
            return found + _connects(site, mode, size, variants, connects)
        finally:
            gc.unfreeze()


async def _changes(field: Field, mode: str, size: Size, rounds: int) -> list[Cost]:
    """Replace one endpoint of each variant's Service, from the event to the commit."""
    times: dict[str, list[Spent]] = {variant.name: [] for variant in field.variants}
    sent: dict[str, int] = {}
    slots = range(size.endpoints - 1)
    for number in range(rounds + 1):
        for index, variant in _shuffled(field.variants):
            began, processor = time.perf_counter(), _processor_seconds()
            field.set_slots(index, [*slots, _SPARE + number % 32])
            sent[variant.name] = await field.round()
            processor = _processor_seconds() - processor
            spent = time.perf_counter() - began
            if number:  # the first one warms up
                times[variant.name].append(Spent(spent * 1000, processor * 1000))
    more = {name: f" ({count} bytes sent)" for name, count in sent.items()}
    return _compared(mode, "one endpoint replaced", size, times, "ms", more)


def _connects(
    site: Site, mode: str, size: Size, variants: Sequence[Variant], rounds: int
) -> list[Cost]:
    """Connect to each variant's Service in turn."""
    times: dict[str, list[Spent]] = {variant.name: [] for variant in variants}
    with site.client.inside():
        for number in range(rounds + _WARM_UP):
            for index, variant in _shuffled(variants):
                made = connect(index)
                if number >= _WARM_UP:
                    times[variant.name].append(Spent(made.spent, made.processor))
    return _compared(mode, "connect", size, times, "µs", {})


def _processor_seconds() -> float:
    """What this process and the tools that it has run have used."""
    tools = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + tools.ru_utime + tools.ru_stime


def _shuffled(variants: Sequence[Variant]) -> Iterator[tuple[int, Variant]]:
    return iter(random.sample(tuple(enumerate(variants)), len(variants)))


def _compared(
    mode: str,
    what: str,
    size: Size,
    times: Mapping[str, Sequence[Spent]],
    unit: str,
    more: Mapping[str, str],
) -> list[Cost]:
    default = _median(times[DEFAULT.name])
    return [
        Cost(mode, what, size, name, _median(values), default, unit, more.get(name, ""))
        for name, values in times.items()
    ]


def _median(values: Sequence[Spent]) -> Spent:
    return Spent(median(v.clock for v in values), median(v.processor for v in values))
