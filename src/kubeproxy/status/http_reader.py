"""From the bytes of one connection to requests, one at a time. No I/O.

The buffer is bounded: by the limit of a head while one is incomplete, by a few kilobytes while a
body is, because of bodies only the beginning is kept and only for methods that use them. Bytes are
searched once however small the pieces in which they arrive.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from kubeproxy.status import http_wire as wire
from kubeproxy.status.http_wire import Head, Refused, Request

USES_BODY = frozenset({"PUT"})
"""Methods whose handlers see the body. All other bodies are skipped."""


class Incoming(msgspec.Struct, frozen=True):
    """A request that is complete, and whether the response to it is the last."""

    request: Request
    head: Head
    closes: bool


class RequestReader:
    """Feed it bytes and take requests from it until there is none."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._head: Head | None = None
        self._body = bytearray()
        self._unread = 0
        self._follows_post = False
        self._is_starved = False
        self.owes_continue = False
        """Does the client wait for leave to send its body? Granting it clears this."""

    @property
    def held_bytes(self) -> int:
        return len(self._buffer) + len(self._body)

    @property
    def is_idle(self) -> bool:
        """Has no byte of the next request arrived?"""
        return self._head is None and not self._buffer

    @property
    def is_starved(self) -> bool:
        """Is there no request before more bytes arrive?"""
        return self._is_starved or self.is_idle

    def feed(self, data: bytes) -> None:
        """Take in what has arrived."""
        self._is_starved = False
        self._buffer += data

    def clear(self) -> None:
        """Forget everything that has arrived."""
        self._buffer.clear()
        self._body.clear()

    def next(self) -> Incoming | None:
        """Return the next request, or None if more bytes are needed. Raises Refused."""
        found = self._next()
        self._is_starved = found is None
        return found

    def _next(self) -> Incoming | None:
        if self._head is None:
            self._head = self._take_head()
            if self._head is None:
                return None
            if not self._starts_body(self._head):
                return self._complete(self._head, closes=True)
        if self._head.body_bytes == wire.CHUNKED:
            return self._take_chunks(self._head)
        return self._take_body(self._head)

    def _take_head(self) -> Head | None:
        if self._follows_post:  # Go forgives blank lines after a body, which old clients send
            start = self._buffer[:4]
            del self._buffer[: len(start) - len(start.lstrip(b"\r\n"))]
        found = wire.END_OF_HEAD.search(self._buffer, self._searched)
        if found is None:
            self._check_beginning()
            return None
        head = bytes(self._buffer[: found.start()])
        if len(head) > wire.MAX_HEAD_BYTES:
            raise Refused(431)
        del self._buffer[: found.end()]
        self._searched = 0
        return wire.parse_head(head)

    def _check_beginning(self) -> None:
        """Refuse an unfinished head that is too long, or that can be no request."""
        if len(self._buffer) > wire.MAX_HEAD_BYTES:
            raise Refused(431)
        end = self._buffer.find(b"\n")
        if end >= self._searched:
            wire.check_request_line(bytes(self._buffer[:end]))
        # All of what ends a head may have arrived but for its last byte.
        self._searched = max(0, len(self._buffer) - 2)

    def _starts_body(self, head: Head) -> bool:
        """Begin to read the body. Return False if it is not read, which ends the connection."""
        self._body.clear()
        self._unread = head.body_bytes
        self._follows_post = head.request.method == "POST"
        if head.body_bytes == 0:
            return True
        if head.body_bytes > wire.MAX_BODY_BYTES:
            return False
        if head.request.method in USES_BODY:
            self.owes_continue = head.expects_continue
            return True
        return head.keep_alive and not head.expects_continue

    def _take_body(self, head: Head) -> Incoming | None:
        taken = min(self._unread, len(self._buffer))
        room = wire.MAX_KEPT_BODY_BYTES - len(self._body)
        self._body += self._buffer[: min(taken, room)]
        del self._buffer[:taken]
        self._unread -= taken
        return self._complete(head) if self._unread == 0 else None

    def _take_chunks(self, head: Head) -> Incoming | None:
        try:
            body = wire.parse_chunks(bytes(self._buffer[: wire.MAX_CHUNKED_BYTES]))
        except Refused:
            return self._complete(head, closes=True)
        if body is not None:
            self._body += body.content[: wire.MAX_KEPT_BODY_BYTES]
            del self._buffer[: body.wire_bytes]
            return self._complete(head)
        if len(self._buffer) >= wire.MAX_CHUNKED_BYTES:
            return self._complete(head, closes=True)
        return None

    def _complete(self, head: Head, *, closes: bool = False) -> Incoming:
        body = bytes(self._body) if head.request.method in USES_BODY else b""
        self._head = None
        self._body.clear()
        self.owes_continue = False
        request = replace(head.request, body=body) if body else head.request
        return Incoming(request, head, closes or not head.keep_alive)
