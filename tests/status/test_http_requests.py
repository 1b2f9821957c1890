"""Requests of every shape, answered as upstream's servers answer them.

The status lines, and whether the connection stays open, were observed at upstream's health server
(v1.36.4, Go 1.26). A test sends each request followed by a plain one on the same connection.
"""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.loopback import ask, exchange, serving
from tests.support.waiting import limit

from kubeproxy.facts.ids import Family
from kubeproxy.status.health import ProxyHealth
from kubeproxy.status.health_server import health_handler
from kubeproxy.status.http import Handler, Request, Response, text
from kubeproxy.status.http_reader import RequestReader
from kubeproxy.status.http_wire import (
    MAX_HEAD_BYTES,
    Refused,
    format_refusal,
    format_response,
    parse_chunks,
)
from kubeproxy.status.metrics import Metrics


def get(
    path: bytes = b"/healthz", *fields: bytes, method: bytes = b"GET", body: bytes = b""
) -> bytes:
    """A request with a Host, as a client would write it."""
    return b"\r\n".join([method + b" " + path + b" HTTP/1.1", b"Host: x", *fields, b"", body])


def line(first: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join([first, *fields, b"", b""])


LAST = get(b"/livez", b"Connection: close")

SERVED = {
    "plain": get(),
    "HEAD": get(method=b"HEAD"),
    "unknown method": get(method=b"FOO"),
    "long method": get(method=b"A" * 10_000),
    "lower-case method": get(method=b"get"),
    "bare LF": b"GET /healthz HTTP/1.1\nHost: x\n\n",
    "CRLF and LF mixed": b"GET /healthz HTTP/1.1\nHost: x\r\n\n",
    "HTTP/1.2": line(b"GET /healthz HTTP/1.2", b"Host: x"),
    "HTTP/1.0 with keep-alive": line(b"GET /healthz HTTP/1.0", b"Connection: keep-alive"),
    "empty Host": line(b"GET /healthz HTTP/1.1", b"Host:"),
    "absolute form": get(b"http://y/healthz"),
    "absolute form with port": get(b"https://y:1/healthz?a=b"),
    "OPTIONS *": get(b"*", method=b"OPTIONS"),
    "CONNECT with a path": get(method=b"CONNECT"),
    "escaped path": get(b"/health%7a"),
    "query with semicolon": get(b"/healthz?a;b"),
    "value beyond ASCII": get(b"/healthz", b"X: \xc3\xa4\xff"),
    "value with tab": get(b"/healthz", b"X: a\tb"),
    "folded value": get(b"/healthz", b"X: a", b" b"),
    "many fields": get(b"/healthz", *(b"X%d: a" % n for n in range(90))),
    "body": get(b"/healthz", b"Content-Length: 5", body=b"hello"),
    "padded length": get(b"/healthz", b"Content-Length:   5  ", body=b"hello"),
    "length twice": get(b"/healthz", b"Content-Length: 1", b"Content-Length: 1", body=b"a"),
    "chunked": get(b"/healthz", b"Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n\r\n"),
    "chunked with trailer": get(
        b"/healthz", b"Transfer-Encoding: chunked", body=b"1;a=b\r\nx\r\n0\r\nA: b\r\n\r\n"
    ),
    "chunked and length": get(
        b"/healthz", b"Transfer-Encoding: chunked", b"Content-Length: 3", body=b"0\r\n\r\n"
    ),
    "Expect without a body": get(b"/healthz", b"Expect: 100-continue"),
    "upgrade to HTTP/2": get(b"/healthz", b"Connection: Upgrade", b"Upgrade: h2c"),
    "blank line after POST": get(b"/healthz", b"Content-Length: 1", method=b"POST", body=b"a\r\n"),
}  # fmt: skip

SERVED_ONCE = {
    "HTTP/1.0": line(b"GET /healthz HTTP/1.0"),
    "HTTP/1.0 with Host": line(b"GET /healthz HTTP/1.0", b"Host: x"),
    "HTTP/1.0 chunked": line(b"GET /healthz HTTP/1.0", b"Transfer-Encoding: chunked"),
    "close": get(b"/healthz", b"Connection: close"),
    "close among others": get(b"/healthz", b"Connection: keep-alive, CLOSE"),
    "close in the second field": get(b"/healthz", b"Connection: keep-alive", b"Connection: close"),
    "close without the body": get(b"/healthz", b"Connection: close", b"Content-Length: 5"),
    "Expect": get(b"/healthz", b"Expect: 100-continue", b"Content-Length: 5"),
    "long body": get(b"/healthz", b"Content-Length: 300000"),
    "endless body": get(b"/healthz", b"Content-Length: 9223372036854775807"),
    "malformed chunks": get(b"/healthz", b"Transfer-Encoding: chunked", body=b"zz\r\n"),
    "chunks with bare LF": get(b"/healthz", b"Transfer-Encoding: chunked", body=b"1\nx\n0\r\n\r\n"),
    "long chunks": get(b"/healthz", b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n" * 4000),
}

BAD = {
    "HTTP/0.9": line(b"GET /healthz"),
    "HTTP/1.11": line(b"GET /healthz HTTP/1.11", b"Host: x"),
    "http/1.1": line(b"GET /healthz http/1.1", b"Host: x"),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(range(197)),
    "NUL": b"\0\0\0\0\r\n\r\n",
    "garbage": b"\xff" * 100 + b"\r\n\r\n",
    "blank lines": b"\n\n\n\n",
    "leading blank line": b"\r\n" + get(),
    "leading blank": b" " + get(),
    "two blanks": line(b"GET  /healthz HTTP/1.1", b"Host: x"),
    "trailing blank": line(b"GET /healthz HTTP/1.1 ", b"Host: x"),
    "tabs": line(b"GET\t/healthz\tHTTP/1.1", b"Host: x"),
    "no method": line(b" /healthz HTTP/1.1", b"Host: x"),
    "malformed method": get(method=b"G(T"),
    "method beyond ASCII": get(method=b"\xc3\xa4"),
    "NUL in path": get(b"/heal\0thz"),
    "blank in path": get(b"/a b"),
    "DEL in path": get(b"/a\x7fb"),
    "malformed escape": get(b"/health%zz"),
    "no slash": get(b"healthz"),
    "no path": get(b""),
    "only a query": get(b"?a"),
    "two hosts": line(b"GET /healthz HTTP/1.1", b"Host: a", b"Host: b"),
    "no colon": get(b"/healthz", b"abc"),
    "tab before colon": get(b"/healthz", b"X\t: a"),
    "no name": get(b"/healthz", b": a"),
    "malformed name": get(b"/healthz", b"X(: a"),
    "name beyond ASCII": get(b"/healthz", b"\xc3\xa4: a"),
    "NUL in name": get(b"/healthz", b"X\0: a"),
    "NUL in value": get(b"/healthz", b"X: a\0b"),
    "control in value": get(b"/healthz", b"X: a\x01"),
    "DEL in value": get(b"/healthz", b"X: a\x7f"),
    "CR in value": get(b"/healthz", b"X: a\rb"),
    "first field folded": line(b"GET /healthz HTTP/1.1", b" Host: x"),
    "negative length": get(b"/healthz", b"Content-Length: -1"),
    "signed length": get(b"/healthz", b"Content-Length: +1", body=b"a"),
    "length of words": get(b"/healthz", b"Content-Length: x"),
    "empty length": get(b"/healthz", b"Content-Length: "),
    "two lengths": get(b"/healthz", b"Content-Length: 1", b"Content-Length: 2", body=b"aa"),
    "list of lengths": get(b"/healthz", b"Content-Length: 1, 1", body=b"a"),
    "length beyond 63 bits": get(b"/healthz", b"Content-Length: 99999999999999999999999"),
    "length of a million digits": get(b"/healthz", b"Content-Length: " + b"9" * 60_000),
    "length with underscore": get(b"/healthz", b"Content-Length: 1_0"),
    "length beyond ASCII": get(b"/healthz", "Content-Length: ٣".encode()),
}

OTHER = {
    "elsewhere": (get(b"/nope"), ["404 Not Found", "200 OK"]),
    "beyond ASCII": (get("/ü".encode()), ["404 Not Found", "200 OK"]),
    "fragment": (get(b"/healthz#x"), ["404 Not Found", "200 OK"]),
    "long path": (get(b"/" + b"a" * 60_000), ["404 Not Found", "200 OK"]),
    "CONNECT": (
        line(b"CONNECT a:443 HTTP/1.1", b"Host: a:443"),
        ["404 Not Found", "200 OK"],
    ),
    "opaque": (get(b"foo:bar"), ["307 Temporary Redirect", "200 OK"]),
    "dots": (get(b"/./healthz"), ["307 Temporary Redirect", "200 OK"]),
    "two slashes": (get(b"//healthz"), ["307 Temporary Redirect", "200 OK"]),
    "HTTP/2.0": (
        line(b"GET / HTTP/2.0", b"Host: x"),
        ["505 HTTP Version Not Supported: unsupported protocol version"],
    ),
    "no Host": (
        line(b"GET /healthz HTTP/1.1"),
        ["400 Bad Request: missing required Host header"],
    ),
    "absolute form without Host": (
        line(b"GET http://y/healthz HTTP/1.1"),
        ["400 Bad Request: missing required Host header"],
    ),
    "malformed Host": (
        line(b"GET /healthz HTTP/1.1", b"Host: a b"),
        ["400 Bad Request: malformed Host header"],
    ),
    "folded Host": (
        line(b"GET /healthz HTTP/1.1", b"Host: x", b" b"),
        ["400 Bad Request: malformed Host header"],
    ),
    "blank before colon": (
        get(b"/healthz", b"X : a"),
        ["400 Bad Request: invalid header name"],
    ),
    "gzip": (get(b"/healthz", b"Transfer-Encoding: gzip"), ["501 Not Implemented"]),
    "two encodings": (
        get(b"/healthz", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        ["501 Not Implemented"],
    ),
    "unknown expectation": (get(b"/healthz", b"Expect: 200-ok"), ["417 Expectation Failed"]),
    "pipelined": (get() + get(method=b"HEAD") + get(), ["200 OK"] * 4),
    "blank line after GET": (get() + b"\r\n", ["200 OK", "400 Bad Request"]),
    # Ours: Go closes the connection.
    "*": (get(b"*"), ["400 Bad Request", "200 OK"]),
    # Ours: Go's limit is one megabyte.
    "long head": (b"GET /" + b"a" * 70_000, ["431 Request Header Fields Too Large"]),
    "long field": (get(b"/", b"X: " + b"a" * 70_000), ["431 Request Header Fields Too Large"]),
    "too many fields": (
        get(b"/", *(b"X: a" for _ in range(500))),
        ["431 Request Header Fields Too Large"],
    ),
}  # fmt: skip

CASES = {
    **{name: (data, ["200 OK", "200 OK"]) for name, data in SERVED.items()},
    **{name: (data, ["200 OK"]) for name, data in SERVED_ONCE.items()},
    **{name: (data, ["400 Bad Request"]) for name, data in BAD.items()},
    **OTHER,
}


def health() -> Handler:
    state = ProxyHealth(60, monotonic=lambda: 0, wall_ns=lambda: 0)
    state.updated(Family.IPV4)
    state.node_eligible = True
    return health_handler(state, Metrics("iptables"))


@pytest.mark.parametrize("name", CASES)
async def test_a_request_is_answered_as_upstream_answers_it(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And none of them is worth a line in the log."""
    data, expected = CASES[name]
    with caplog.at_level(logging.DEBUG):
        async with serving(health()) as port:
            received = await exchange(port, data + LAST)
            assert (await ask(port, "/livez")).status == 200
    found = re.findall(rb"HTTP/1\.[01] ([^\r]*)\r\n", received)
    assert [status.decode() for status in found] == expected
    assert not caplog.records


async def test_a_refusal_byte_by_byte() -> None:
    async with serving(health()) as port:
        received = await exchange(port, line(b"GET / HTTP/1.1"))
    assert received == (
        b"HTTP/1.1 400 Bad Request: missing required Host header\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
        b"400 Bad Request: missing required Host header"
    )


async def test_a_redirect_names_the_shortest_path() -> None:
    async with serving(health()) as port:
        reply = await ask(port, "//a/../healthz/.")
    assert (reply.status, reply.headers["Location"]) == (307, "/healthz")
    assert reply.body == b'<a href="/healthz">Temporary Redirect</a>.\n\n'


async def test_nothing_of_a_request_gets_into_the_headers_of_a_response() -> None:
    async with serving(health()) as port:
        received = await exchange(port, get(b"/./%0d%0aEvil:%201") + LAST)
    assert b"\nEvil" not in received
    assert b"Location: /%0D%0AEvil:%201\r\n" in received


async def test_a_body_reaches_the_handlers_that_use_it() -> None:
    """By length and in chunks, with and without waiting for leave; only its beginning if long."""
    seen: list[bytes] = []

    def keep(request: Request) -> Response:
        seen.append(request.body)
        return text("kept")

    put = get(b"/", b"Content-Length: 5", method=b"PUT", body=b"three")
    waits = get(
        b"/", b"Expect: 100-continue", b"Transfer-Encoding: chunked", method=b"PUT",
        body=b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    )  # fmt: skip
    long = get(b"/", b"Content-Length: 200000", method=b"PUT", body=b"x" * 200_000)
    async with serving(keep) as port:
        received = await exchange(port, put + waits + long + LAST)
    assert received.count(b"HTTP/1.1 200 OK") == 4
    assert [len(body) for body in seen] == [5, 5, 4096, 0]
    assert seen[:2] == [b"three", b"abcde"]


async def test_leave_to_send_a_body_is_given() -> None:
    async with serving(lambda request: text(request.body.decode())) as port:
        head = get(b"/", b"Expect: 100-continue", b"Content-Length: 2", method=b"PUT")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        async with limit():
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"ok")
            assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_an_exception_in_a_handler_is_an_answer_and_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The connection, and the other clients, go on."""

    def fail(request: Request) -> Response:
        raise ValueError(f"no {request.path}")

    async def fail_later(request: Request) -> Response:
        return fail(request)

    for handler in (fail, fail_later):
        async with serving(handler) as port:
            received = await exchange(port, get(b"/once") * 5 + LAST)
        assert received.count(b"HTTP/1.1 500 Internal Server Error") == 6
    assert len([r for r in caplog.records if "HTTP request failed" in r.getMessage()]) == 2


# -- any bytes at all --

PIECES = st.sampled_from(
    [data for data, _ in CASES.values() if len(data) < 500]
    + [b"\r\n", b"\n", b"GET ", b"PUT / HTTP/1.1\r\n", b"Content-Length: 3\r\n", b"5\r\nhello\r\n"]
)


@settings(max_examples=examples(300))
@given(st.lists(st.one_of(PIECES, st.binary(max_size=50)), max_size=8), st.integers(1, 400))
def test_any_bytes_are_requests_or_refused_and_never_held_for_long(
    pieces: list[bytes], size: int
) -> None:
    """Whatever arrives in pieces of whatever size."""
    data, reader = b"".join(pieces), RequestReader()
    try:
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
            while incoming := reader.next():
                assert format_response(
                    Response(b"x"), incoming.head, 0, closes=incoming.closes
                ).startswith(b"HTTP/1.")
            assert reader.held_bytes <= MAX_HEAD_BYTES + size
    except Refused as refused:
        assert format_refusal(refused).startswith(b"HTTP/1.1 ")


@settings(deadline=None)
@given(st.lists(PIECES, max_size=5), st.integers(1, 50))
def test_how_bytes_are_cut_into_pieces_does_not_matter(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    assert taken(data, size) == taken(data, len(data) or 1)


def taken(data: bytes, size: int) -> list[object]:
    """Every request in these bytes, and the refusal that ended them."""
    reader, found = RequestReader(), list[object]()
    try:
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
            while incoming := reader.next():
                found.append(incoming)
                if incoming.closes:
                    return found
    except Refused as refused:
        found.append(refused.line)
    return found


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=10), st.binary(max_size=20))
def test_chunks_are_read_back(chunks: list[bytes], more: bytes) -> None:
    data = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    body = parse_chunks(data + more)
    assert body is not None
    assert (body.content, body.wire_bytes) == (b"".join(chunks), len(data))
    assert all(parse_chunks(data[:cut]) is None for cut in range(len(data)))
