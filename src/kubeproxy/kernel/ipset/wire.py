"""ipset messages: sets and their entries as bytes, both directions. Pure.

Why: one process per entry is what makes ipset slow elsewhere; one message takes hundreds.
Promise: entries are compared as values, not as text, so `10.0.0.1` and `10.0.0.1/32` are the
same; what is formatted here the kernel accepts. Leaves to others: sending (`kernel.ipset`).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import NLA_F_NET_BYTEORDER as _BE

PROTOCOL_VERSION = 6
"""Every kernel since 2.6.39 speaks it; nothing newer is needed here."""

CMD_PROTOCOL = 1
CMD_CREATE = 2
CMD_DESTROY = 3
CMD_LIST = 7
CMD_ADD = 9
CMD_DEL = 10
CMD_TYPE = 13

MAX_ELEMENTS = 65536
HASH_SIZE = 1024
_LAST_PORT = 65535

_SUBSYSTEM = 6
_ATTR_PROTOCOL = 1
_ATTR_SETNAME = 2
_ATTR_TYPENAME = 3
_ATTR_REVISION = 4
_ATTR_FAMILY = 5
_ATTR_DATA = 7
_ATTR_ADT = 8
_ATTR_LINENO = 9

_DATA_IP = 1
_DATA_PORT = 4
_DATA_PORT_TO = 5
_DATA_PROTO = 7
_DATA_HASHSIZE = 18
_DATA_MAXELEM = 19
_DATA_IP2 = 20
_DATA_CIDR2 = 21

_IPV4 = 1
_IPV6 = 2

_PRIVATE_ERRORS = {
    4097: "protocol error",
    4098: "the kernel does not support this set type",
    4099: "the limit on the number of sets is reached",
    4100: "the set is in use by a rule",
    4101: "the new name is taken",
    4102: "the set types do not match",
    4103: "the element is already, or not, in the set",
    4104: "invalid prefix length",
    4106: "address family not supported by the set",
    4109: "wrong or missing address",
    4352: f"the set is full ({MAX_ELEMENTS} entries)",
}
"""Numbers above 4096 are ipset's own; those a user may meet, in words."""


class SetType(StrEnum):
    """The five kinds of sets in use; the value is the kernel's name."""

    IP = "hash:ip"
    IP_PORT = "hash:ip,port"
    IP_PORT_IP = "hash:ip,port,ip"
    IP_PORT_NET = "hash:ip,port,net"
    PORT = "bitmap:port"


class SetHead(msgspec.Struct, frozen=True, gc=False):
    """What a set is; a bitmap of ports has no address family."""

    type: SetType | str
    is_ipv6: bool = False


class Entry(NamedTuple):
    """One element of a set; unused fields keep their defaults.

    `prefix_length` belongs to `second` in an ip,port,net set and is never left out: a host has
    32 or 128.
    """

    address: str = ""
    protocol: int = 0
    port: int = 0
    second: str = ""
    prefix_length: int = 0


class Listed(msgspec.Struct, frozen=True):
    """A set as the kernel holds it."""

    head: SetHead
    entries: frozenset[Entry]


def message_type(command: int) -> int:
    return (_SUBSYSTEM << 8) | command


def error_text(errno: int) -> str:
    """ipset's own errors in words; empty for ordinary ones."""
    return _PRIVATE_ERRORS.get(errno, "")


def _start(name: str | None = None) -> bytes:
    head = codec.nfgen(socket.AF_INET) + codec.attr_u8(_ATTR_PROTOCOL, PROTOCOL_VERSION)
    return head + codec.attr_str(_ATTR_SETNAME, name) if name is not None else head


def format_protocol() -> bytes:
    return _start()


def format_name(name: str) -> bytes:
    """Body of a message that needs nothing but the set's name: LIST, DESTROY."""
    return _start(name)


def _set_family(head: SetHead) -> int:
    if head.type == SetType.PORT:
        return socket.AF_UNSPEC
    return socket.AF_INET6 if head.is_ipv6 else socket.AF_INET


def format_type_request(head: SetHead) -> bytes:
    """Body that asks which revisions of a set type the kernel has (and makes it load one)."""
    return (
        _start()
        + codec.attr_str(_ATTR_TYPENAME, head.type)
        + codec.attr_u8(_ATTR_FAMILY, _set_family(head))
    )


def parse_revision(body: bytes) -> int:
    """The newest revision the kernel has."""
    return codec.parse_attrs(body, 4)[_ATTR_REVISION][0]


def format_create(name: str, head: SetHead, revision: int) -> bytes:
    if head.type == SetType.PORT:
        data = codec.attr_be16(_DATA_PORT | _BE, 0) + codec.attr_be16(
            _DATA_PORT_TO | _BE, _LAST_PORT
        )
    else:
        data = codec.attr_be32(_DATA_HASHSIZE | _BE, HASH_SIZE) + codec.attr_be32(
            _DATA_MAXELEM | _BE, MAX_ELEMENTS
        )
    return (
        _start(name)
        + codec.attr_str(_ATTR_TYPENAME, head.type)
        + codec.attr_u8(_ATTR_REVISION, revision)
        + codec.attr_u8(_ATTR_FAMILY, _set_family(head))
        + codec.attr_nested(_ATTR_DATA, data)
    )


def format_entries(name: str, entries: Iterable[Entry]) -> bytes:
    """Body of ADD or DEL for many entries of one set.

    The kernel insists on line numbers as soon as there is a list.
    """
    members = b"".join(
        codec.attr_nested(_ATTR_DATA, _format_entry(entry), codec.attr_be32(_ATTR_LINENO | _BE, n))
        for n, entry in enumerate(entries, 1)
    )
    return (
        _start(name)
        + codec.attr_be32(_ATTR_LINENO | _BE, 0)
        + codec.attr_nested(_ATTR_ADT, members)
    )


def _format_entry(entry: Entry) -> bytes:
    parts = []
    if entry.address:
        parts.append(_format_address(_DATA_IP, entry.address))
    if entry.port or not entry.address:
        parts.append(codec.attr_be16(_DATA_PORT | _BE, entry.port))
    if entry.protocol:
        parts.append(codec.attr_u8(_DATA_PROTO, entry.protocol))
    if entry.second:
        parts.append(_format_address(_DATA_IP2, entry.second))
    if entry.prefix_length:
        parts.append(codec.attr_u8(_DATA_CIDR2, entry.prefix_length))
    return b"".join(parts)


def _format_address(kind: int, address: str) -> bytes:
    if ":" in address:
        inner = codec.attr(_IPV6 | _BE, socket.inet_pton(socket.AF_INET6, address))
    else:
        inner = codec.attr(_IPV4 | _BE, socket.inet_pton(socket.AF_INET, address))
    return codec.attr_nested(kind, inner)


def parse_head(body: bytes) -> SetHead | None:
    """What a set is, from a listing's first message; None in its later ones."""
    attrs = codec.parse_attrs(body, 4)
    if _ATTR_TYPENAME not in attrs:
        return None
    name = codec.text(attrs[_ATTR_TYPENAME])
    is_ipv6 = attrs.get(_ATTR_FAMILY, b"\0")[0] == socket.AF_INET6
    return SetHead(SetType(name) if name in set(SetType) else name, is_ipv6)


def parse_entries(body: bytes, set_type: SetType | str) -> Iterator[Entry]:
    """The entries in one message of a listing (or in an ADD or DEL)."""
    adt = codec.parse_attrs(body, 4).get(_ATTR_ADT, b"")
    for kind, data in codec.iter_attrs(adt):
        if kind == _ATTR_DATA:
            yield _parse_entry(codec.parse_attrs(data), set_type)


def _parse_entry(attrs: dict[int, bytes], set_type: SetType | str) -> Entry:
    second = _parse_address(attrs.get(_DATA_IP2, b""))
    prefix_length = 0
    if set_type == SetType.IP_PORT_NET:
        host = 128 if ":" in second else 32
        prefix_length = attrs[_DATA_CIDR2][0] if _DATA_CIDR2 in attrs else host
    return Entry(
        address=_parse_address(attrs.get(_DATA_IP, b"")),
        protocol=attrs.get(_DATA_PROTO, b"\0")[0],
        port=codec.be(attrs.get(_DATA_PORT, b"")),
        second=second,
        prefix_length=prefix_length,
    )


def _parse_address(raw: bytes) -> str:
    for kind, packed in codec.iter_attrs(raw):
        return socket.inet_ntop(socket.AF_INET6 if kind == _IPV6 else socket.AF_INET, packed)
    return ""
