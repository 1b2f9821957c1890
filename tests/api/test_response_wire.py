"""Responses from bytes, however they are cut; what is not HTTP is named."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.api import response_wire as wire
from kubeproxy.api.response_wire import Malformed, format_request, open_body, parse_head

CHUNKED = parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")


def chunked(pieces: list[bytes]) -> bytes:
    sent = b"".join(b"%x;a=b\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return sent + b"0\r\nTrailer: x\r\n\r\n"


@given(st.lists(st.binary(min_size=1)), st.lists(st.integers(1, 40)))
def test_chunks_are_joined_wherever_they_are_cut(pieces: list[bytes], cuts: list[int]) -> None:
    body, data, found = open_body(CHUNKED), chunked(pieces), b""
    for size in cuts:
        found, data = found + body.feed(data[:size]), data[size:]
    found += body.feed(data)
    assert found == b"".join(pieces)
    assert body.is_done and body.keeps_connection


@given(st.binary(), st.integers(0, 100))
def test_any_bytes_are_a_body_or_malformed(data: bytes, cut: int) -> None:
    body = open_body(CHUNKED)
    try:
        found = body.feed(data[:cut]) + body.feed(data[cut:])
    except Malformed:
        return
    assert len(found) <= len(data)


@given(st.binary())
def test_any_bytes_are_a_head_or_malformed(data: bytes) -> None:
    try:
        parse_head(b"HTTP/1.1 200 OK\r\n" + data + b"\r\n\r\n")
    except Malformed:
        return


@pytest.mark.parametrize(
    "line",
    [b"", b"HTTP/2 200 OK", b"HTTP/1.1 20 OK", b"HTTP/1.1 2000", b"ICY 200 OK", b"\0"],
)
def test_a_head_without_a_status_is_malformed(line: bytes) -> None:
    with pytest.raises(Malformed, match="status"):
        parse_head(line + b"\r\n\r\n")


@pytest.mark.parametrize("line", [b"no colon", b": no name", b" folded: x", b"sp ace: x"])
def test_a_header_without_a_name_is_malformed(line: bytes) -> None:
    with pytest.raises(Malformed, match="name"):
        parse_head(b"HTTP/1.1 200 OK\r\n" + line + b"\r\n\r\n")


def test_header_names_are_spelled_one_way_and_repeats_are_joined() -> None:
    head = parse_head(b"HTTP/1.1 429 \r\nretry-AFTER:  7\r\nA: 1\r\na: 2\r\n\r\n")
    assert (head.status, head.headers) == (429, {"Retry-After": "7", "A": "1, 2"})


@pytest.mark.parametrize(
    ("version", "connection", "keeps"),
    [(1, "", True), (1, "close", False), (1, "x, Close", False), (0, "", False)],
)
def test_whether_a_connection_is_kept(version: int, connection: str, keeps: bool) -> None:
    head = f"HTTP/1.{version} 200 OK\r\nConnection: {connection}\r\n\r\n"
    assert parse_head(head.encode()).keeps_connection is keeps


@pytest.mark.parametrize(
    "header",
    [
        "Content-Length: -1",
        "Content-Length: 1, 2",
        "Content-Length: 9999999999999999",
        "Transfer-Encoding: gzip, chunked",
    ],
)
def test_a_body_of_unknown_size_is_malformed(header: str) -> None:
    with pytest.raises(Malformed):
        open_body(parse_head(f"HTTP/1.1 200 OK\r\n{header}\r\n\r\n".encode()))


def test_a_line_before_a_chunk_is_bounded() -> None:
    body = open_body(CHUNKED)
    with pytest.raises(Malformed, match="no end"):
        body.feed(b"1" * (wire.MOST_LINE_BYTES + 1))


@pytest.mark.parametrize("data", [b"x\r\n", b"1\r\nabc\r\n", b"-1\r\n", b"f" * 16 + b"\r\n"])
def test_chunks_that_are_none_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        open_body(CHUNKED).feed(data)


def test_bytes_after_the_end_spoil_the_connection() -> None:
    for head, data in (
        (CHUNKED, b"0\r\n\r\nHTTP/1.1 200 OK"),
        (parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"), b"abc"),
    ):
        body = open_body(head)
        body.feed(data)
        assert body.is_done and not body.keeps_connection


def test_little_that_unpacks_to_much_is_unpacked_bit_by_bit() -> None:
    content = wire.open_content(parse_head(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"))
    size, rest = 0, zlib.compress(bytes(10 << 20), wbits=31)
    while rest:
        piece, rest = content.decode(rest)
        assert len(piece) <= wire.MOST_PIECE_BYTES
        size += len(piece)
    assert size + len(content.end()) == 10 << 20


def test_packed_content_that_breaks_off_or_is_none_is_malformed() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
    content = wire.open_content(head)
    content.decode(zlib.compress(b"text", wbits=31)[:-1])
    with pytest.raises(Malformed, match="breaks off"):
        content.end()
    with pytest.raises(Malformed, match="not gzip"):
        wire.open_content(head).decode(b"text")


def test_a_request_is_its_lines_and_its_body() -> None:
    wanted = b"POST /a HTTP/1.1\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}"
    assert format_request("POST", "/a", [("Host", "b")], b"{}") == wanted
    with pytest.raises(ValueError, match="the header A "):
        format_request("GET", "/", [("A", "x\r\nB: y")])
