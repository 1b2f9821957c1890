"""One request and its response on one connection, and whether another may follow.

A `Connection` outlives its exchanges; an `Exchange` ends with its body. Every wait has two limits:
a deadline for all of it, and the longest silence between bytes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from msgspec import Struct

from kubeproxy.api.dial import READ_BUFFER_BYTES, Stream
from kubeproxy.api.response_wire import (
    MOST_HEAD_BYTES,
    Head,
    Malformed,
    open_body,
    open_content,
    parse_head,
)

T = TypeVar("T")

MOST_INTERIM_HEADS = 10
"""A server may send heads with a status below 200 before the one that counts."""


class NoResponse(Exception):
    """The connection ended before the first byte of a response."""


class Limits(Struct, frozen=True):
    """`deadline` is a time of the event loop."""

    deadline: float
    idle_seconds: float


class Connection:
    """A connection, and the TLS context it was made with: credentials belong to it."""

    def __init__(self, stream: Stream, context: ssl.SSLContext | None) -> None:
        self.reader, self._writer = stream
        self.context = context
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        return not (self.reader.at_eof() or self._writer.is_closing())

    def keep(self, seconds: float) -> None:
        """Abort it after so long, unless it is used before."""
        self._expiry = asyncio.get_running_loop().call_later(seconds, self.abort)

    def use(self) -> None:
        """It is not idle any more."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def abort(self) -> None:
        """End it without the close of TLS, which would wait for a server that is sending."""
        self.use()
        self._writer.transport.abort()


class Exchange:
    """A response as it arrives."""

    def __init__(self, connection: Connection, head: Head, limits: Limits) -> None:
        self.connection = connection
        self.head = head
        self._limits = limits
        self._body = open_body(head)
        self._content = open_content(head)

    @property
    def keeps_connection(self) -> bool:
        """Is the response complete, and may another request follow?"""
        may_follow = self.head.keeps_connection and self._body.keeps_connection
        return self._body.is_done and may_follow

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the decoded body as it arrives. Raises Malformed, OSError, TimeoutError."""
        while not self._body.is_done:
            data = await _within(self._limits, self.connection.reader.read(READ_BUFFER_BYTES))
            if not data:
                self._body.end()
            rest = self._body.feed(data)
            while rest:
                piece, rest = self._content.decode(rest)
                yield piece
        yield self._content.end()


async def begin(connection: Connection, message: bytes, limits: Limits) -> Exchange:
    """Send a request and wait for the head of its response. Aborts the connection on failure.

    Raises NoResponse, Malformed, OSError, TimeoutError.
    """
    try:
        connection.write(message)
        for _ in range(MOST_INTERIM_HEADS):
            head = await _within(limits, _read_head(connection.reader))
            if head.status >= 200:
                return Exchange(connection, head, limits)
        raise Malformed("it has only interim heads")
    except BaseException:
        connection.abort()
        raise


async def _read_head(reader: asyncio.StreamReader) -> Head:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except ConnectionError as error:
        raise NoResponse(str(error)) from error
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            raise NoResponse("the server closed the connection") from None
        raise Malformed("its head breaks off") from None
    except asyncio.LimitOverrunError:
        raw = b""
    if not 0 < len(raw) <= MOST_HEAD_BYTES:
        raise Malformed("its head is too large")
    return parse_head(raw)


async def _within(limits: Limits, wait: Awaitable[T]) -> T:
    now = asyncio.get_running_loop().time()
    async with asyncio.timeout_at(min(limits.deadline, now + limits.idle_seconds)):
        return await wait
