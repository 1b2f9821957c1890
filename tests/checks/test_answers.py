"""What answers mean, and how much of one is looked at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.checks.answers import (
    MOST_BYTES,
    NO_STATUS,
    NOT_HTTP,
    HttpAnswer,
    http_request,
    judge_datagram,
)
from kubeproxy.checks.attempts import tls_name
from kubeproxy.facts.policy import CheckKind, HealthCheck

CHECK = HealthCheck(CheckKind.HTTP, "/healthz")
HEAD = b"Content-Length: 2\r\n\r\nok"


def reason(data: bytes, check: HealthCheck = CHECK) -> str | None:
    """What is wrong with an answer that came at once; `more` if it is not complete."""
    answer = HttpAnswer(check)
    if not answer.feed(data):
        return "more"
    return answer.failure.reason if answer.failure else None


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("status", [200, 204, 301, 399])
def test_what_is_expected_passes(version: str, status: int) -> None:
    assert reason(b"HTTP/%s %d Fine\r\n" % (version.encode(), status) + HEAD) is None
    assert reason(b"HTTP/%s %d" % (version.encode(), status)) is None


@pytest.mark.parametrize("status", [101, 400, 404, 503])
def test_another_status_fails(status: int) -> None:
    assert reason(b"HTTP/1.1 %d No\r\n" % status) == f"status {status}"


def test_statuses_are_a_choice() -> None:
    check = HealthCheck(CheckKind.HTTP, "/", statuses=((200, 200), (404, 404)))
    assert reason(b"HTTP/1.1 404 Not Found\r\n", check) is None
    assert reason(b"HTTP/1.1 204 No Content\r\n", check) == "status 204"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/2.0 200\r\n",
        b"\x16\x03\x01",
        b"HTTP/1.1 abc\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2\r\n",
        b"\0" * 100_000,
    ],
)
def test_what_is_not_http_fails(data: bytes) -> None:
    assert reason(data) == NOT_HTTP.reason


def test_an_interim_response_is_passed_over() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    assert reason(early) == "more"
    assert reason(early * 3 + b"HTTP/1.1 200 OK\r\n") is None
    assert reason(early + b"HTTP/1.1 500 No\r\n") == "status 500"


def test_an_answer_without_end_is_not_kept() -> None:
    """Headers of an interim response, or ever more of them: that is enough."""
    assert reason(b"HTTP/1.1 103 Early\r\n" + b"a: b\r\n" * 1000) == NOT_HTTP.reason
    answer = HttpAnswer(CHECK)
    fed = 0
    while not answer.feed(b"HTTP/1.1 100 Continue\r\n\r\n"):
        fed += 1
    assert fed * 25 <= MOST_BYTES


@pytest.mark.parametrize("data", [b"", b"HTTP", b"HTTP/1.1 20"])
def test_a_connection_that_ends_too_early_fails(data: bytes) -> None:
    answer = HttpAnswer(CHECK)
    assert not data or not answer.feed(data)
    assert answer.feed(b"")
    assert answer.failure == NO_STATUS


@given(st.binary(max_size=200), st.data())
def test_it_does_not_matter_how_an_answer_is_cut(data: bytes, cuts: st.DataObject) -> None:
    text = cuts.draw(st.sampled_from([b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n"])) + data
    whole = HttpAnswer(CHECK)
    is_complete = whole.feed(text) if text else False
    pieces = HttpAnswer(CHECK)
    found = any(pieces.feed(bytes([byte])) for byte in text)
    assert found == is_complete
    if found and whole.failure is None:
        assert pieces.failure is None


def test_the_request_is_one_of_a_client_that_closes() -> None:
    request = http_request(CHECK, "10.0.0.1", 8080)
    assert request.startswith(b"GET /healthz HTTP/1.1\r\nHost: 10.0.0.1:8080\r\n")
    assert b"\r\nConnection: close\r\n" in request
    assert request.endswith(b"\r\n\r\n")
    assert b"Host: [fd00::1]:80\r\n" in http_request(CHECK, "fd00::1", 80)
    named = HealthCheck(CheckKind.HTTP, "/", host="web.example.org")
    assert b"Host: web.example.org\r\n" in http_request(named, "10.0.0.1", 80)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("", None),
        ("web.example.org", "web.example.org"),
        ("web.example.org:8443", "web.example.org"),
        ("node1", "node1"),
        ("10.0.0.1", "10.0.0.1"),
        ("fd00::1", "fd00::1"),
        (".example.org", None),
        ("a" * 64 + ".org", None),
    ],
)
def test_the_name_for_tls_is_a_valid_one(host: str, name: str | None) -> None:
    assert tls_name(HealthCheck(CheckKind.HTTPS, "/", host=host)) == name


def test_a_datagram_begins_as_expected() -> None:
    check = HealthCheck(CheckKind.UDP, expect=b"pong")
    assert judge_datagram(check, b"pong 1") is None
    assert judge_datagram(check, b"ping") is not None
    assert judge_datagram(HealthCheck(CheckKind.UDP), b"") is None
