"""Just enough HTTP/1.x to answer probes: any path, any method, one fixed kind of answer.

A node can have thousands of service health ports, each probed every few seconds by several load
balancers. A full HTTP server per port costs far more than the answer. Requests are read to the
end of their head and a short body is skipped. After anything unusual the connection is closed.
Parsing and formatting are pure, and `ProbeProtocol` moves the bytes. What is answered is left to
the listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

import msgspec

from kubeproxy.go.time import format_http_date

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 256 * 1024
"""A longer request body is not read, and the connection is closed after the answer."""

IDLE_SECONDS = 120.0
"""How long a connection may wait for its next request."""

LINGER_SECONDS = 0.5
"""How long a peer has to close after the last answer."""


class ProbeAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a probe, before it is formatted."""

    code: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Head(msgspec.Struct, frozen=True, gc=False):
    """The part of a request's head that matters here."""

    method: str
    version: str
    keep_alive: bool
    body_bytes: int


class BadRequest(ValueError):
    """The bytes are not a valid request."""


class Answers(Protocol):
    """The methods of a listener that its connections call."""

    def answer(self) -> ProbeAnswer: ...

    def opened(self, transport: asyncio.Transport) -> None: ...

    def closed(self, transport: asyncio.Transport) -> None: ...


def parse_head(head: bytes) -> Head:
    """Parse a request's head, given without the blank line that ends it. Raises BadRequest."""
    request_line, *lines = head.decode("latin-1").split("\r\n")
    words = request_line.split(" ")
    if len(words) != 3 or not words[0] or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadRequest(f"malformed request line {request_line!r}")
    fields = dict(map(_parse_field, lines))
    connection = fields.get("connection", "").lower()
    keep_alive = connection == "keep-alive" if words[2] == "HTTP/1.0" else connection != "close"
    unread = "transfer-encoding" in fields or "expect" in fields
    length = 0 if unread else _parse_length(fields.get("content-length", "0"))
    if unread or length > MAX_BODY_BYTES:
        return Head(words[0], words[2], False, 0)
    return Head(words[0], words[2], keep_alive, length)


def _parse_field(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise BadRequest(f"malformed header {line!r}")
    return name.lower(), value.strip()


def _parse_length(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"malformed content length {text!r}")
    return int(text)


def format_answer(answer: ProbeAnswer, head: Head, now_ns: int) -> bytes:
    """Format an answer, with headers in the order Go writes them."""
    lines = [f"{head.version} {answer.code} {HTTPStatus(answer.code).phrase}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    lines += [f"Date: {format_http_date(now_ns)}", f"Content-Length: {len(answer.body)}"]
    if not head.keep_alive:
        lines.append("Connection: close")
    elif head.version == "HTTP/1.0":
        lines.append("Connection: keep-alive")
    text = "\r\n".join(lines) + "\r\n\r\n"
    return text.encode("latin-1") + (b"" if head.method == "HEAD" else answer.body)


def format_refusal(code: int) -> bytes:
    """Format Go's answer to an invalid request, after which the connection is closed."""
    line = f"{code} {HTTPStatus(code).phrase}"
    fields = "Content-Type: text/plain; charset=utf-8\r\nConnection: close"
    return f"HTTP/1.1 {line}\r\n{fields}\r\n\r\n{line}".encode("latin-1")


class ProbeProtocol(asyncio.Protocol):
    """One connection of a probe."""

    def __init__(
        self,
        listener: Answers,
        now_ns: Callable[[], int],
        *,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._idle_seconds = idle_seconds
        self._listener = listener
        self._now_ns = now_ns
        self._buffer = bytearray()
        self._skip = 0
        self._done = False
        self._transport: asyncio.Transport
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._listener.opened(transport)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._listener.closed(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._done:
            return  # the last answer is out, and further bytes are only drained
        self._buffer += data
        try:
            while self._step():
                pass
        except BadRequest:
            self._finish(format_refusal(400))

    def _step(self) -> bool:
        """Answer one request. Return False when more bytes are needed."""
        dropped = min(self._skip, len(self._buffer))
        del self._buffer[:dropped]
        self._skip -= dropped
        end = self._buffer.find(b"\r\n\r\n")
        if self._done or end < 0:
            self._limit_head()
            return False
        head = parse_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        self._skip = head.body_bytes
        self._reply(head)
        return True

    def _limit_head(self) -> None:
        if len(self._buffer) > MAX_HEAD_BYTES:
            self._finish(format_refusal(431))

    def _reply(self, head: Head) -> None:
        data = format_answer(self._listener.answer(), head, self._now_ns())
        if head.keep_alive:
            self._transport.write(data)
            self._rest()
        else:
            self._finish(data)

    def _finish(self, data: bytes) -> None:
        """Send the last answer, then let the peer close.

        Closing a socket with unread bytes resets it, and the peer may lose the answer.
        """
        self._done = True
        self._buffer.clear()
        self._transport.write(data)
        self._transport.write_eof()
        self._rest(seconds=LINGER_SECONDS)

    def _rest(self, seconds: float | None = None) -> None:
        """Restart the timer that aborts an idle connection."""
        if self._idle is not None:
            self._idle.cancel()
        loop = asyncio.get_running_loop()
        wait = self._idle_seconds if seconds is None else seconds
        self._idle = loop.call_later(wait, self._transport.abort)
