"""Go's number format, content negotiation, and the protobuf form of metrics."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.facts.ids import Family
from kubeproxy.go.floats import format_general
from kubeproxy.status.exposition import PROTOBUF, negotiate
from kubeproxy.status.metrics import Metrics
from kubeproxy.sync.report import RoundReport

TEXT = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "-0"),
        (1, "1"),
        (-1, "-1"),
        (25.0, "25"),
        (0.25, "0.25"),
        (16.384, "16.384"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (160000, "160000"),
        (999999, "999999"),
        (1e6, "1e+06"),
        (1048576, "1.048576e+06"),
        (1763230000.123, "1.763230000123e+09"),
        (1e100, "1e+100"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
    ],
)
def test_numbers_read_as_in_go(value: float, text: str) -> None:
    assert format_general(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_number_reads_back_the_same(value: float) -> None:
    assert float(format_general(value)) == value


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("application/openmetrics-text; version=1.0.0", TEXT),
        (
            "text/plain;version=0.0.4;escaping=allow-utf-8",
            TEXT.replace("underscores", "allow-utf-8"),
        ),
        ("text/plain;escaping=nonsense", TEXT),
        (PROTOBUF, f"{PROTOBUF}; escaping=underscores"),
        ("application/vnd.google.protobuf;proto=other;encoding=delimited", TEXT),
        (f"text/plain;q=0.3, {PROTOBUF};q=0.7", f"{PROTOBUF}; escaping=underscores"),
        (f"text/plain;q=0.7, {PROTOBUF};q=0.3", TEXT),
    ],
)
def test_the_client_chooses_text_or_protobuf(accept: str, content_type: str) -> None:
    assert negotiate(accept) == content_type


def test_label_values_are_escaped() -> None:
    metrics = Metrics("iptables")
    metrics.add("kubeproxy_rejected_objects_total", kind='a"b\\c\nd')
    assert r'{kind="a\"b\\c\nd"} 1' in metrics.scrape()[1].decode()


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """A plain protobuf reader: field number and raw value."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            length = 8 if tag & 7 == 1 else varint()
            yield tag >> 3, data[at : at + length]
            at += length


def read_families(data: bytes) -> dict[str, list[tuple[int, int | bytes]]]:
    """Length-delimited families by name."""
    found = {}
    # A delimited stream reads like a message whose tags are missing; put them back.
    rest = data
    while rest:
        length = shift = used = 0
        while True:
            byte = rest[used]
            length |= (byte & 0x7F) << shift
            shift += 7
            used += 1
            if byte < 0x80:
                break
        family = list(fields(rest[used : used + length]))
        name = dict(family)[1]
        assert isinstance(name, bytes)
        found[name.decode()] = family
        rest = rest[used + length :]
    return found


def one(message: int | bytes, number: int) -> bytes:
    assert isinstance(message, bytes)
    value = dict(fields(message))[number]
    assert isinstance(value, bytes)
    return value


def test_protobuf_holds_what_the_text_holds() -> None:
    """Counters, gauges and histograms survive; the infinite bucket is implied."""
    metrics = Metrics("iptables")
    metrics.slice_event(pending=5)
    metrics.observe_round(RoundReport(Family.IPV4, True, 2.5, 0.003))
    content_type, body = metrics.scrape(PROTOBUF)
    assert content_type.startswith(PROTOBUF)
    families = read_families(body)
    counter = dict(families["kubeproxy_sync_proxy_rules_endpoint_changes_total"])
    assert counter[3] == 0
    assert struct.unpack("<d", one(one(counter[4], 3), 1)) == (1.0,)
    gauge = dict(families["kubeproxy_sync_proxy_rules_last_timestamp_seconds"])
    assert gauge[3] == 1
    assert one(one(gauge[4], 1), 2) == b"IPv4"
    assert struct.unpack("<d", one(one(gauge[4], 2), 1)) == (2.5,)
    histogram = dict(families["kubeproxy_sync_full_proxy_rules_duration_seconds"])
    assert histogram[3] == 4
    parts = list(fields(one(histogram[4], 7)))
    assert (1, 1) in parts
    buckets = [dict(fields(v)) for n, v in parts if n == 3 and isinstance(v, bytes)]
    assert [b[1] for b in buckets] == [0, 0] + [1] * 13
