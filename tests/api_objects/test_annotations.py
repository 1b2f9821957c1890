"""The values of our annotations: what is understood, what is refused and with which words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.api.annotations import (
    MOST_SOURCES,
    format_draining,
    format_health_check,
    format_sources,
    format_weights,
    parse_algorithm,
    parse_draining,
    parse_health_check,
    parse_weights,
    readable_sources,
)
from kubeproxy.facts.policy import Algorithm, CheckKind, HealthCheck

# --- draining ---


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("keep", None), (" reset ", 0.0), ("drain limit=30s", 30.0), ("drain  limit=1m30s", 90.0)],
)
def test_draining_is_understood(text: str, seconds: float | None) -> None:
    assert parse_draining(text) == seconds
    assert parse_draining(format_draining(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "none of keep, reset, drain limit=30s"),
        ("Reset", "none of keep"),
        ("reset 5s", "none of keep"),
        ("drain", "not followed by a limit"),
        ("drain 30s", "not followed by a limit"),
        ("drain limit=30s limit=40s", "not followed by a limit"),
        ("drain limit=", "limit=: "),
        ("drain limit=0s", "not within 1s to 1h0m0s"),
        ("drain limit=2h", "not within 1s to 1h0m0s"),
    ],
)
def test_wrong_draining_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_draining(text)


@pytest.mark.parametrize("limit", ["9" * 250_000 + "s", "\N{GREEK SMALL LETTER MU}" * 250_000])
def test_a_limit_of_any_length_is_refused_in_few_words(limit: str) -> None:
    """The reason is logged, kept in the plan and sent as an event, by every node."""
    with pytest.raises(ValueError, match="is too long for a duration") as caught:
        parse_draining(f"drain limit={limit}")
    assert len(str(caught.value)) < 200


# --- algorithm ---


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_algorithm_is_understood(algorithm: Algorithm) -> None:
    assert parse_algorithm(f" {algorithm.value} ") is algorithm


def test_an_unknown_algorithm_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'Random' is none of random, round-robin, source-hash"):
        parse_algorithm("Random")


# --- weights ---


def test_weights_are_by_address_and_by_zone() -> None:
    """What is no address is a zone; addresses get their canonical text."""
    text = "10.0.0.1=3, fd00:0::1=0 ,zone-b=256"
    assert parse_weights(text) == {"10.0.0.1": 3, "fd00::1": 0, "zone-b": 256}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an entry is empty"),
        ("10.0.0.1=1,", "an entry is empty"),
        ("10.0.0.1", "not of the form ADDRESS=WEIGHT"),
        ("=3", "not of the form"),
        ("a b=3", "not of the form"),
        ("10.0.0.1=-1", "'-1' is not a number within 0 to 256"),
        ("10.0.0.1=257", "not a number within 0 to 256"),
        ("10.0.0.1=1.5", "not a number"),
        ("10.0.0.1=٣", "not a number"),
        ("10.0.0.1=" + "9" * 5000, "not a number"),
        ("fd00::1=1,fd00:0::1=2", "is there twice"),
        (",".join(f"zone-{n}=1" for n in range(3000)), "3000 entries are more than 2000"),
    ],
)
def test_wrong_weights_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_weights(text)


@given(
    st.dictionaries(
        st.one_of(
            st.ip_addresses().map(str),
            st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
        ),
        st.integers(0, 256),
        min_size=1,
    )
)
def test_weights_are_read_as_they_are_written(weights: dict[str, int]) -> None:
    assert sum(parse_weights(format_weights(weights)).values()) == sum(weights.values())


# --- sources ---


def test_sources_are_networks_of_both_families() -> None:
    """Host bits are no part of a network; an address is a network of its own."""
    found, wrong = readable_sources("10.1.2.3/8, fd00::/8,192.0.2.7,10.0.0.0/8")
    assert found == ("10.0.0.0/8", "fd00::/8", "192.0.2.7/32")
    assert wrong == ()
    assert format_sources(("10.0.0.0/8", "fd00::/8")) == "10.0.0.0/8,fd00::/8"


@pytest.mark.parametrize("text", ["", "10.0.0.0/33", "example.org", "10.0.0.0/8 fd00::/8"])
def test_wrong_sources_are_refused(text: str) -> None:
    found, wrong = readable_sources(text)
    assert found == ()
    assert re.search(r"an entry is empty|is no address and no network", wrong[0])


def test_of_a_long_list_no_more_is_looked_at_than_may_hold() -> None:
    """An annotation may be of any length in a file, and 256 kB in a cluster."""
    found, wrong = readable_sources("," * 1_000_000)
    assert found == ()
    assert len(wrong) == 1 + MOST_SOURCES
    assert wrong[-1] == "1000001 entries are more than 1000: those beyond are left out"


# --- health checks ---


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("tcp", HealthCheck(CheckKind.TCP)),
        ("tcp port=8081 interval=2s", HealthCheck(CheckKind.TCP, port=8081, interval_seconds=2)),
        (
            "http /healthz host=web.example.org status=200-299,404",
            HealthCheck(
                CheckKind.HTTP,
                path="/healthz",
                host="web.example.org",
                statuses=((200, 299), (404, 404)),
            ),
        ),
        (
            "https / timeout=500ms rise=1 fall=5 jitter=0%",
            HealthCheck(
                CheckKind.HTTPS, path="/", timeout_seconds=0.5, rise=1, fall=5, jitter_percent=0
            ),
        ),
        (
            "udp send=0x00ff expect=pong",
            HealthCheck(CheckKind.UDP, send=b"\x00\xff", expect=b"pong"),
        ),
    ],
)
def test_health_checks(text: str, check: HealthCheck) -> None:
    assert parse_health_check(text) == check
    assert format_health_check(check) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is none of tcp, http, https, udp"),
        ("icmp", "'icmp' is none of"),
        ("http", "not followed by a path"),
        ("http port=80", "not followed by a path"),
        ("http /ä", "must be percent-encoded"),
        ("tcp host=a", "'host=a' is none of port=, interval="),
        ("tcp port", "port=: '' is not a number"),
        ("tcp port=0", "not a number within 1 to 65535"),
        ("tcp port=1 port=2", "port= is there twice"),
        ("tcp interval=10", "interval=: time: missing unit"),
        ("tcp interval=1ms", "not within 100ms to 1h"),
        ("tcp interval=1s timeout=2s", "timeout= is longer than interval="),
        ("tcp timeout=50ms", "'50ms' is not within 100ms to 1h0m0s"),
        ("none rise=2", "'none' is none of tcp, http, https, udp, none"),
        ("http / status=700", "status=: '700' is not a number within 100 to 599"),
        ("http / status=300-200", "ends before it begins"),
        ("http / host=a/b", "is no host name"),
        ("udp send=0xfg", "is not hexadecimal"),
        ("udp send=", "0 bytes are not within"),
        ("udp send=" + "a" * 600, "600 bytes are not within"),
        ("http /" + "a" * 5000, "5006 characters are more than 4096"),
        ("http / status=" + "200," * 2000 + "200", "characters are more than 4096"),
        ("tcp interval=" + "1" * 5000, "characters are more than 4096"),
    ],
)
def test_wrong_health_checks_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_health_check(text)


def test_no_check_is_a_value_of_its_own() -> None:
    """So that a Service is left out where a flag asks for checks of all."""
    assert parse_health_check(" none ") is None
    assert format_health_check(None) == "none"


_CHECKS = st.builds(
    HealthCheck,
    kind=st.just(CheckKind.UDP),
    port=st.integers(0, 65535),
    interval_seconds=st.sampled_from((0.2, 1.0, 2.5, 3600.0)),
    timeout_seconds=st.sampled_from((0.1, 0.15)),
    rise=st.integers(1, 100),
    fall=st.integers(1, 100),
    jitter_percent=st.integers(0, 100),
    send=st.binary(max_size=40),
    expect=st.binary(max_size=40),
)


@given(_CHECKS)
def test_a_formatted_check_is_parsed_to_the_same(check: HealthCheck) -> None:
    assert parse_health_check(format_health_check(check)) == check


@given(st.text(max_size=80))
def test_no_text_is_worse_than_a_value_error(text: str) -> None:
    """Annotations are written by any user of the cluster."""
    for parse in (
        parse_algorithm,
        parse_draining,
        lambda words: parse_draining(f"drain limit={words}"),
        parse_weights,
        readable_sources,
        parse_health_check,
        lambda words: parse_health_check(f"http /x {words}"),
        lambda words: parse_health_check(f"udp {words}"),
    ):
        try:
            parse(text)
        except ValueError:
            continue
