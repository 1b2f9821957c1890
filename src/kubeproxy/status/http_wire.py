"""HTTP/1.x as bytes: request heads and bodies to values, responses to bytes. Pure.

What is accepted, what is refused and with which words follows Go's net/http, because upstream's
servers are Go's: lines may end with a bare LF, header values may be folded, a request without Host
is refused. Requests captured from upstream's servers are the test of it.

Why our own parser: health, metrics and thousands of service health ports share one server whose
every buffer is bounded (`connection`). h11 would parse heads too, but refuses with its own words,
joins folded lines and counts limits differently, and the limits, time-outs and bodies would still
be ours to write: a dependency for the smaller half.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from kubeproxy.go.time import format_http_date

MAX_HEAD_BYTES = 64 * 1024
MAX_HEAD_LINES = 128
"""A head beyond either is refused with 431. Go's limit is one megabyte."""

MAX_BODY_BYTES = 256 * 1024
"""A longer body is not read, and the connection is closed after the response. Go's limit."""

MAX_KEPT_BODY_BYTES = 4 * 1024
"""The part of a body that a handler sees. The rest is skipped."""

MAX_CHUNKED_BYTES = 16 * 1024
"""A longer chunked body is not read to its end either: it is parsed again with every arrival."""

CHUNKED = -1
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

END_OF_HEAD = re.compile(rb"\n\r?\n")
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TOKEN_WITH_BLANKS = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z ]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_HOST = re.compile(r"[A-Za-z0-9!$%&()*+,\-.:;=\['\]_~]*")
_VERSION = re.compile(rb"HTTP/([0-9])\.([0-9])")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_SCHEME = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*):")
_AUTHORITY = re.compile(rb"(?:[^@]*@)?(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]*)(?::[0-9]*)?")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?")


class Request(msgspec.Struct, frozen=True):
    """The part of a request that handlers see. Header names are lower case."""

    method: str
    path: str
    query: Mapping[str, tuple[str, ...]] = {}
    headers: Mapping[str, str] = {}
    body: bytes = b""

    @property
    def accept(self) -> str:
        return self.headers.get("accept", "")


class Response(msgspec.Struct, frozen=True):
    """The response of a handler."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Head(msgspec.Struct, frozen=True):
    """One request's head: what handlers see, and how the connection goes on."""

    request: Request
    is_http_1_0: bool = False
    keep_alive: bool = True
    body_bytes: int = 0
    """Declared length of the body, or CHUNKED."""
    expects_continue: bool = False


class Refused(Exception):
    """A request that is answered with an error, after which the connection is closed."""

    def __init__(self, status: int, detail: str = "", *, body: str | None = None) -> None:
        super().__init__(f"{status} {detail}")
        phrase = HTTPStatus(status).phrase
        self.line = f"{status} {phrase}: {detail}" if detail else f"{status} {phrase}"
        self.body = self.line if body is None else body


def check_request_line(line: bytes) -> None:
    """Refuse what cannot be a request without waiting for the rest of its head. Raises Refused."""
    method, target, _ = _parse_request_line(line.removesuffix(b"\r"))
    _parse_target(method, target)


def parse_head(head: bytes) -> Head:
    """Parse a request's head, given without the blank line that ends it. Raises Refused."""
    if head.count(b"\n") >= MAX_HEAD_LINES:
        raise Refused(431)
    first, *lines = (line.removesuffix(b"\r") for line in head.split(b"\n"))
    method, target, version = _parse_request_line(first)
    path, query = _parse_target(method, target)
    fields = _parse_fields(lines)
    body_bytes = _parse_body_bytes(fields, version)
    is_preface = (method, target, version) == (b"PRI", b"*", (2, 0))
    if version[0] != 1 and not is_preface:
        raise Refused(505, "unsupported protocol version")
    _check_host(fields, is_needed=version != (1, 0) and method != b"CONNECT" and not is_preface)
    if any(" " in name for name in fields):
        raise Refused(400, "invalid header name")
    return Head(
        Request(
            method.decode("ascii"),
            path,
            _parse_query(query),
            {name: values[0] for name, values in fields.items()},
        ),
        is_http_1_0=version == (1, 0),
        keep_alive=_keeps_alive(fields.get("connection", ()), version) and not is_preface,
        body_bytes=body_bytes,
        expects_continue=_parse_expect(fields.get("expect", [""])[0], version, body_bytes),
    )


def _parse_request_line(line: bytes) -> tuple[bytes, bytes, tuple[int, int]]:
    words = line.split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]):
        raise Refused(400)
    version = _VERSION.fullmatch(words[2])
    if version is None:
        raise Refused(400)
    return words[0], words[1], (int(version[1]), int(version[2]))


def _parse_target(method: bytes, target: bytes) -> tuple[str, bytes]:
    """Return the decoded path and the raw query of a request target in any of its four forms."""
    if not target or _CONTROL.search(target):
        raise Refused(400)
    if target == b"*":
        return "*", b""
    if method == b"CONNECT" and not target.startswith(b"/"):
        target = b"http://" + target
    scheme = _SCHEME.match(target)
    rest, _, query = target[scheme.end() if scheme else 0 :].partition(b"?")
    if not rest.startswith(b"/"):
        if scheme is None:
            raise Refused(400)
        return "", query  # an opaque address such as `mailto:me`
    if scheme and rest.startswith(b"//"):
        authority, slash, path = rest[2:].partition(b"/")
        if not _AUTHORITY.fullmatch(authority):
            raise Refused(400)
        rest = slash + path
    if _BAD_ESCAPE.search(rest):
        raise Refused(400)
    return unquote_to_bytes(rest).decode(errors="replace"), query


def _parse_query(query: bytes) -> dict[str, tuple[str, ...]]:
    """Return the values by name. A query of absurdly many parts counts as none."""
    found: dict[str, tuple[str, ...]] = {}
    if not query:
        return found
    # Like Go, a part with a semicolon is left out.
    parts = "&".join(part for part in query.decode("latin-1").split("&") if ";" not in part)
    try:
        pairs = parse_qsl(parts, keep_blank_values=True, max_num_fields=MAX_HEAD_LINES)
    except ValueError:
        return found
    for name, value in pairs:
        found[name] = (*found.get(name, ()), value)
    return found


def _parse_fields(lines: list[bytes]) -> dict[str, list[str]]:
    """Return all values by lower-case name. A folded line continues the one before it."""
    unfolded: list[bytes] = []
    for line in lines:
        if not line.startswith((b" ", b"\t")):
            if b":" not in line:
                raise Refused(400)
            unfolded.append(line.strip(b" \t"))
        elif unfolded:
            unfolded[-1] += b" " + line.strip(b" \t")
        else:
            raise Refused(400)
    fields: dict[str, list[str]] = {}
    for line in unfolded:
        name, _, value = line.partition(b":")
        if not _TOKEN_WITH_BLANKS.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Refused(400)
        text = value.lstrip(b" \t").decode("latin-1")
        fields.setdefault(name.decode("ascii").lower(), []).append(text)
    return fields


def _parse_body_bytes(fields: Mapping[str, list[str]], version: tuple[int, int]) -> int:
    """Return the declared length of the body, or CHUNKED. Ambiguous requests are refused."""
    encodings = fields.get("transfer-encoding", []) if version != (1, 0) else []
    if encodings and [e.lower() for e in encodings] != ["chunked"]:
        raise Refused(501, body="Unsupported transfer encoding")
    lengths = set(fields.get("content-length", []))
    if len(lengths) > 1 or not all(re.fullmatch("[0-9]{1,30}", length) for length in lengths):
        raise Refused(400)
    length = int(lengths.pop()) if lengths else 0
    if length >= 1 << 63:
        raise Refused(400)
    return CHUNKED if encodings else length


def _check_host(fields: Mapping[str, list[str]], *, is_needed: bool) -> None:
    hosts = fields.get("host", [])
    if len(hosts) > 1:
        raise Refused(400)
    if is_needed and not hosts:
        raise Refused(400, "missing required Host header")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise Refused(400, "malformed Host header")


def _keeps_alive(values: list[str] | tuple[()], version: tuple[int, int]) -> bool:
    tokens = {token.strip().lower() for value in values for token in value.split(",")}
    return "close" not in tokens and (version != (1, 0) or "keep-alive" in tokens)


def _parse_expect(value: str, version: tuple[int, int], body_bytes: int) -> bool:
    """Return whether the client waits for leave to send its body. Raises Refused."""
    if not value:
        return False
    if "100-continue" not in re.split("[ ,\t]", value.lower()):
        raise Refused(417, body="")
    return version != (1, 0) and body_bytes != 0


class Body(msgspec.Struct, frozen=True):
    """A whole chunked body and the number of bytes it took on the wire."""

    content: bytes
    wire_bytes: int


def parse_chunks(data: bytes) -> Body | None:
    """Parse a chunked body from its start. Return None if more bytes are needed.

    Raises Refused for bytes that cannot become a body. Trailing fields are read and dropped.
    """
    content, at = bytearray(), 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size = _CHUNK_SIZE.fullmatch(data, at, end)
        if size is None:
            raise Refused(400)
        length, at = int(size[1], 16), end + 2
        if length == 0:
            return _parse_trailer(data, bytes(content), at)
        if not b"\r\n".startswith(data[at + length : at + length + 2]):
            raise Refused(400)
        content += data[at : at + length]
        at += length + 2
    return None


def _parse_trailer(data: bytes, content: bytes, at: int) -> Body | None:
    if data.startswith(b"\r\n", at):
        return Body(content, at + 2)
    end = END_OF_HEAD.search(data, at)
    return Body(content, end.end()) if end else None


def format_response(response: Response, head: Head, now_ns: int, *, closes: bool) -> bytes:
    """Format a response, with headers in the order Go writes them."""
    version = "HTTP/1.0" if head.is_http_1_0 else "HTTP/1.1"
    lines = [f"{version} {response.status} {HTTPStatus(response.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in response.headers]
    lines += [f"Date: {format_http_date(now_ns)}", f"Content-Length: {len(response.body)}"]
    if closes and not head.is_http_1_0:
        lines.append("Connection: close")
    elif head.is_http_1_0 and not closes:
        lines.append("Connection: keep-alive")
    text = "\r\n".join(lines) + "\r\n\r\n"
    body = b"" if head.request.method == "HEAD" else response.body
    return text.encode("latin-1", errors="replace") + body


def format_refusal(refused: Refused) -> bytes:
    """Format Go's answer to a request that is not one."""
    fields = "Content-Type: text/plain; charset=utf-8\r\nConnection: close"
    return f"HTTP/1.1 {refused.line}\r\n{fields}\r\n\r\n{refused.body}".encode("latin-1")
