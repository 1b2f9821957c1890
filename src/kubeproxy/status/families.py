"""Counters, gauges and histograms as they stand, and families of samples to print. Pure.

What `exposition` prints, as values, and the three kinds of metrics that are counted here. Names and
meanings are those of Prometheus' libraries; a family keeps the whole name of its metric, `_total`
included, as Go's does. Why not the library: its import takes as long as asyncio's and brings an
HTTP server, and what it prints is not what Go prints (see `exposition`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

from msgspec import Struct


class Sample(Struct, frozen=True):
    """One line: the name of its family, perhaps with an ending, labels and a value."""

    name: str
    labels: dict[str, str]
    value: float


class Metric:
    """All series of one name."""

    def __init__(self, name: str, kind: str, help_text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.type = kind
        self.documentation = help_text
        self.samples: list[Sample] = []
        self._labels = labels

    def add(self, values: Iterable[str], value: float, ending: str = "", **more: str) -> None:
        """Add a sample. `values` are those of the labels, in their order."""
        labels = dict(zip(self._labels, values, strict=True)) | more
        self.samples.append(Sample(self.name + ending, labels, value))


class Collector(Protocol):
    """Gives families when it is asked."""

    def collect(self) -> Iterable[Metric]: ...


class Registry:
    """The collectors whose families are shown together."""

    def __init__(self) -> None:
        self._collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        self._collectors.append(collector)

    def collect(self) -> Iterator[Metric]:
        for collector in self._collectors:
            yield from collector.collect()


class CounterValue:
    """A number that grows."""

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add to it. Raises ValueError if it would fall."""
        if amount < 0:
            raise ValueError("a counter does not fall")
        self.value += amount


class GaugeValue:
    """A number."""

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value


class HistogramValue:
    """How many observations were at most so large, for each bound; their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.counts = [0] * len(bounds)
        self.sum = 0.0
        self._bounds = bounds

    def observe(self, value: float) -> None:
        self.sum += value
        self.counts[bisect_left(self._bounds, value)] += 1


V = TypeVar("V", CounterValue, GaugeValue, HistogramValue)


class _Live(Generic[V]):
    """The series of one metric. Without labels there is one from the beginning."""

    kind = ""

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self._about = (name, self.kind, help_text, labels)
        self._names = frozenset(labels)
        self._series: dict[tuple[str, ...], V] = {}
        if not labels:
            self._series[()] = self._new()

    def labels(self, **labels: str) -> V:
        """Return the series with these labels. Raises ValueError if they are others."""
        if labels.keys() != self._names:
            raise ValueError(f"{self._about[0]} has the labels {sorted(self._names)}")
        key = tuple(labels[name] for name in self._about[3])
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = self._new()
        return found

    def _new(self) -> V:
        raise NotImplementedError

    def collect(self) -> Iterator[Metric]:
        family = Metric(*self._about)
        for key, value in self._series.items():
            self._show(family, key, value)
        yield family

    def _show(self, family: Metric, key: tuple[str, ...], value: V) -> None:
        raise NotImplementedError


class Counter(_Live[CounterValue]):
    """A counter by labels."""

    kind = "counter"

    def _new(self) -> CounterValue:
        return CounterValue()

    def _show(self, family: Metric, key: tuple[str, ...], value: CounterValue) -> None:
        family.add(key, value.value)


class Gauge(_Live[GaugeValue]):
    """A gauge by labels."""

    kind = "gauge"

    def _new(self) -> GaugeValue:
        return GaugeValue()

    def _show(self, family: Metric, key: tuple[str, ...], value: GaugeValue) -> None:
        family.add(key, value.value)


class Histogram(_Live[HistogramValue]):
    """A histogram by labels. Each bucket counts what is at most its bound."""

    kind = "histogram"

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str], buckets: Sequence[float]
    ) -> None:
        self._bounds = (*buckets, math.inf)
        super().__init__(name, help_text, labels)

    def _new(self) -> HistogramValue:
        return HistogramValue(self._bounds)

    def _show(self, family: Metric, key: tuple[str, ...], value: HistogramValue) -> None:
        for bound, count in zip(self._bounds, accumulate(value.counts), strict=True):
            family.add(key, count, "_bucket", le=str(bound))
        family.add(key, value.sum, "_sum")
        family.add(key, sum(value.counts), "_count")
