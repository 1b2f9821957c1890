"""Counters, gauges and histograms count as Prometheus' own library does."""

from __future__ import annotations

import math

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.status.families import Counter, Gauge, Histogram, Metric

BOUNDS = (0.001, 0.5, 1.0, 7.0)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from((*BOUNDS, 0, -1.0))


def samples(family: Metric) -> dict[tuple[str, str], float]:
    return {(s.name, s.labels.get("le", "")): s.value for s in family.samples}


@given(st.lists(NUMBERS))
def test_a_histogram_counts_as_the_library_does(values: list[float]) -> None:
    ours = Histogram("h", "Help.", ("a",), BOUNDS)
    theirs = prometheus_client.Histogram("h", "Help.", ("a",), registry=None, buckets=BOUNDS)
    for value in values:
        ours.labels(a="x").observe(value)
        theirs.labels(a="x").observe(value)
    (family,), (oracle,) = ours.collect(), theirs.collect()
    wanted = {
        (s.name, str(float(s.labels["le"])) if "le" in s.labels else ""): s.value
        for s in oracle.samples
        if not s.name.endswith("_created")
    }
    assert samples(family) == wanted or any(math.isinf(v) for v in wanted.values())


def test_series_begin_with_their_labels_or_at_once_without() -> None:
    (with_labels,), (without,) = Counter("c", "", ("a",)).collect(), Gauge("g", "", ()).collect()
    assert (with_labels.samples, samples(without)) == ([], {("g", ""): 0.0})


def test_a_counter_does_not_fall_and_knows_its_labels() -> None:
    counter = Counter("c", "", ("a",))
    counter.labels(a="x").inc(2)
    with pytest.raises(ValueError, match="fall"):
        counter.labels(a="x").inc(-1)
    with pytest.raises(ValueError, match=r"labels \['a'\]"):
        counter.labels(b="x")
    (family,) = counter.collect()
    assert [(s.labels, s.value) for s in family.samples] == [({"a": "x"}, 2.0)]
