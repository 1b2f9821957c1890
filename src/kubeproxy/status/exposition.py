"""Metric families as bytes: Prometheus text and delimited protobuf, and choosing between them.

What Prometheus' library for Python prints differs from Go's in ways that scrapers and golden files
notice: numbers (`1` is `1.0`), order, and extra `_created` series. Pure: families in, bytes out.
OpenMetrics is not offered, because upstream does not offer it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from kubeproxy.go.floats import format_general
from kubeproxy.status.accept import parse_accept
from kubeproxy.status.families import Metric, Sample
from kubeproxy.status.protobuf import double_field, message_field, text_field, varint, varint_field

TEXT = "text/plain; version=0.0.4; charset=utf-8"
PROTOBUF = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)
_PROTO_FAMILY = "io.prometheus.client.MetricFamily"
_ESCAPINGS = frozenset({"allow-utf-8", "underscores", "dots", "values"})
_PROTO_TYPES = {"counter": 0, "gauge": 1, "untyped": 3, "histogram": 4}


def negotiate(accept: str) -> str:
    """Choose the content type of the response: text unless the client names protobuf first."""
    escaping = "underscores"
    for accepted in parse_accept(accept):
        wanted = accepted.params.get("escaping", "")
        if wanted in _ESCAPINGS:
            escaping = wanted
        if accepted.media_type == "application/vnd.google.protobuf":
            if (accepted.params.get("proto"), accepted.params.get("encoding")) == (
                _PROTO_FAMILY,
                "delimited",
            ):
                return f"{PROTOBUF}; escaping={escaping}"
        elif accepted.media_type == "text/plain" and accepted.params.get("version", "") in (
            "",
            "0.0.4",
        ):
            break
    return f"{TEXT}; escaping={escaping}"


def encode(families: Iterable[Metric], content_type: str) -> bytes:
    """Encode the families in the format that `negotiate` chose."""
    ordered = [f for f in sorted(families, key=attrgetter("name")) if f.samples]
    if content_type.startswith("application/vnd.google.protobuf"):
        return b"".join(map(_proto_delimited, ordered))
    return "".join(line for family in ordered for line in _text_lines(family)).encode()


def _text_lines(family: Metric) -> Iterator[str]:
    name = family.name
    help_text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {help_text}\n"
    yield f"# TYPE {name} {family.type}\n"
    for sample in sorted(family.samples, key=_sample_order):
        yield f"{sample.name}{_text_labels(sample.labels)} {_number(sample.value)}\n"


def _sample_order(sample: Sample) -> tuple[tuple[str, ...], int, float]:
    """Order series by label values, and a histogram's samples as buckets, sum, count."""
    values = tuple(v for k, v in sorted(sample.labels.items()) if k != "le")
    part = ("_bucket", "_sum", "_count")
    rank = next((i for i, end in enumerate(part) if sample.name.endswith(end)), 0)
    return values, rank, float(sample.labels.get("le", 0))


def _text_labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    # Go writes the labels in order of name and the bucket's bound last.
    named = [(k, v) for k, v in sorted(labels.items()) if k != "le"]
    if "le" in labels:
        named.append(("le", _number(float(labels["le"]))))
    return "{" + ",".join(f'{k}="{_escape(v)}"' for k, v in named) + "}"


def _number(value: float) -> str:
    # Prometheus' library writes every zero without a sign, unlike Go otherwise.
    return format_general(value) if value else "0"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _proto_delimited(family: Metric) -> bytes:
    body = _proto_family(family)
    return varint(len(body)) + body


def _proto_family(family: Metric) -> bytes:
    """Encode io.prometheus.client.MetricFamily: name 1, help 2, type 3, metric 4."""
    head = text_field(1, family.name) + text_field(2, family.documentation)
    head += varint_field(3, _PROTO_TYPES[family.type])
    series: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in sorted(family.samples, key=_sample_order):
        key = tuple((k, v) for k, v in sorted(sample.labels.items()) if k != "le")
        series.setdefault(key, []).append(sample)
    return head + b"".join(
        message_field(4, _proto_labels(key) + _proto_value(family.type, samples))
        for key, samples in series.items()
    )


def _proto_labels(labels: Iterable[tuple[str, str]]) -> bytes:
    return b"".join(message_field(1, text_field(1, k) + text_field(2, v)) for k, v in labels)


def _proto_value(kind: str, samples: list[Sample]) -> bytes:
    """Encode the one value field of a Metric: gauge 2, counter 3, untyped 5, histogram 7."""
    if kind == "histogram":
        return message_field(7, _proto_histogram(samples))
    number = {"gauge": 2, "counter": 3}.get(kind, 5)
    return message_field(number, double_field(1, samples[0].value))


def _proto_histogram(samples: list[Sample]) -> bytes:
    """Encode a Histogram: count 1, sum 2, bucket 3 (cumulative count 1, bound 2)."""
    sums = {s.name.rpartition("_")[2]: s.value for s in samples}
    head = varint_field(1, int(sums["count"])) + double_field(2, sums["sum"])
    # The protobuf form leaves the +Inf bucket out: it is the count.
    bounds = ((float(s.labels["le"]), s.value) for s in samples if "le" in s.labels)
    return head + b"".join(
        message_field(3, varint_field(1, int(count)) + double_field(2, bound))
        for bound, count in bounds
        if math.isfinite(bound)
    )
