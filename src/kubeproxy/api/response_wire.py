"""HTTP/1.1 as a client speaks it: requests to bytes, bytes to heads and bodies of responses. Pure.

Everything that comes from the server is checked and bounded: what is not understood is `Malformed`,
and the connection it came on is not used again.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

MOST_HEAD_BYTES = 64 << 10
MOST_LINE_BYTES = 4 << 10
"""Of the line in front of a chunk, and of a line behind the last one."""
MOST_PIECE_BYTES = 1 << 20
"""So much is unpacked at once, however well it was compressed."""
MOST_DIGITS = 15

_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?", re.ASCII)
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SIZE = re.compile(rb"[0-9a-fA-F]+")
_NO_CONTENT = (204, 304)


class Malformed(Exception):
    """A response is not what HTTP/1.1 allows, or breaks off."""


class Head(Struct, frozen=True):
    """The status and the headers, whose names are spelled like `Retry-After`.

    `keeps_connection`: may another request follow on the same connection?
    """

    status: int
    headers: Mapping[str, str]
    keeps_connection: bool


def format_request(
    method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes = b""
) -> bytes:
    """Return a request as bytes. Raises ValueError if a header holds what no line can hold."""
    for name, value in headers:
        if not value.isprintable():
            raise ValueError(f"the value of the header {name} is not printable")
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if body or method not in ("GET", "CONNECT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode() + body


def parse_head(raw: bytes) -> Head:
    """Return the head of a response, given up to its empty line. Raises Malformed."""
    first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise Malformed("it does not begin with an HTTP/1.1 status")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name):
            raise Malformed("a header line has no name")
        name, value = name.title(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    wishes = {word.strip().lower() for word in headers.get("Connection", "").split(",")}
    keeps = "close" not in wishes and (found[1] == "1" or "keep-alive" in wishes)
    return Head(int(found[2]), headers, keeps)


class Body(Protocol):
    """Takes a body out of the bytes of a connection."""

    is_done: bool
    """Has the last byte been seen?"""
    keeps_connection: bool
    """Does the connection stand at the beginning of the next response then?"""

    def feed(self, data: bytes) -> bytes:
        """Return what of the body is in these bytes. Raises Malformed."""

    def end(self) -> None:
        """The connection has ended. Raises Malformed if the body has not."""


def open_body(head: Head) -> Body:
    """Return what takes the body of this response out of the bytes. Raises Malformed."""
    coding, length = head.headers.get("Transfer-Encoding"), head.headers.get("Content-Length")
    if head.status in _NO_CONTENT:
        return SizedBody(0)
    if coding is not None:
        if coding.lower() != "chunked":
            raise Malformed("its transfer encoding is not known")
        return ChunkedBody()
    if length is not None:
        if not (length.isascii() and length.isdigit() and len(length) <= MOST_DIGITS):
            raise Malformed("its Content-Length is no number")
        return SizedBody(int(length))
    return EndlessBody()


class SizedBody:
    """A body whose length is known."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.is_done = size == 0
        self.keeps_connection = True

    def feed(self, data: bytes) -> bytes:
        taken = data[: self._left]
        self._left -= len(taken)
        self.is_done = self._left == 0
        self.keeps_connection = len(taken) == len(data)
        return taken

    def end(self) -> None:
        raise Malformed("the connection ended before the response did")


class EndlessBody:
    """A body that ends with its connection."""

    is_done = False
    keeps_connection = False

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> None:
        self.is_done = True


class ChunkedBody:
    """A body in chunks, each after its size: what a watch is, with one chunk or more per event."""

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        self._is_between = False
        self._is_last = False
        self.is_done = False
        self.keeps_connection = True

    def feed(self, data: bytes) -> bytes:
        data, at, pieces = self._held + data, 0, []
        while not self.is_done:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at, self._left = at + len(piece), self._left - len(piece)
                if self._left:
                    break
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            self._take_line(data[at:end])
            at = end + 2
        self._held = data[at:]
        if len(self._held) > MOST_LINE_BYTES and not self.is_done:
            raise Malformed("the line before a chunk has no end")
        self.keeps_connection = not self._held
        return b"".join(pieces)

    def _take_line(self, line: bytes) -> None:
        if self._is_last:
            self.is_done = not line
        elif self._is_between:
            if line:
                raise Malformed("a chunk is longer than its size")
            self._is_between = False
        else:
            size = line.partition(b";")[0].strip()
            if not _SIZE.fullmatch(size) or len(size) > MOST_DIGITS:
                raise Malformed("the size of a chunk is no number")
            self._left = int(size, 16)
            self._is_between, self._is_last = bool(self._left), not self._left

    def end(self) -> None:
        raise Malformed("the connection ended before the response did")


class Content(Protocol):
    """Undoes the coding of a body."""

    def decode(self, data: bytes) -> tuple[bytes, bytes]:
        """Return decoded bytes, and those that are still to be decoded. Raises Malformed."""

    def end(self) -> bytes:
        """Return what is left at the end of the body. Raises Malformed if it breaks off."""


def open_content(head: Head) -> Content:
    """Return what decodes the content of this response. Raises Malformed."""
    coding = head.headers.get("Content-Encoding", "identity").lower()
    if coding not in ("identity", "gzip"):
        raise Malformed("its content encoding is not known")
    return Zipped() if coding == "gzip" else Plain()


class Plain:
    """Content as it is."""

    def decode(self, data: bytes) -> tuple[bytes, bytes]:
        return data, b""

    def end(self) -> bytes:
        return b""


class Zipped:
    """Content packed by gzip."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(wbits=31)

    def decode(self, data: bytes) -> tuple[bytes, bytes]:
        try:
            piece = self._unpacker.decompress(data, MOST_PIECE_BYTES)
        except zlib.error:
            raise Malformed("its content is not gzip") from None
        return piece, self._unpacker.unconsumed_tail

    def end(self) -> bytes:
        rest = self._unpacker.flush()
        if not self._unpacker.eof:
            raise Malformed("its content breaks off")
        return rest
