"""ipset messages: sets and their entries as bytes, both directions. Pure.

Why: one process per entry is what makes ipset slow elsewhere; one message takes hundreds.
Promise: the kernel accepts what is formatted here, and entries are compared as values, not as text,
so `10.0.0.1` and `10.0.0.1/32` are the same. Leaves to others: sending (`table`).

Constants have the names of linux/netfilter/ipset/ip_set.h.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kubeproxy.facts.address import family_of, pack_address, unpack_address
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import NLA_F_NET_BYTEORDER as _BE

PROTOCOL_VERSION = 6
"""Every kernel since 2.6.39 speaks it; nothing newer is needed here."""

IPSET_CMD_PROTOCOL = 1
IPSET_CMD_CREATE = 2
IPSET_CMD_DESTROY = 3
IPSET_CMD_LIST = 7
IPSET_CMD_ADD = 9
IPSET_CMD_DEL = 10
IPSET_CMD_TYPE = 13

MAX_ELEMENTS = 65536
HASH_SIZE = 1024
_LAST_PORT = 65535

_NFNL_SUBSYS_IPSET = 6
_AF_UNSPEC = 0

_IPSET_ATTR_PROTOCOL = 1
_IPSET_ATTR_SETNAME = 2
_IPSET_ATTR_TYPENAME = 3
_IPSET_ATTR_REVISION = 4
_IPSET_ATTR_FAMILY = 5
_IPSET_ATTR_DATA = 7
_IPSET_ATTR_ADT = 8
_IPSET_ATTR_LINENO = 9

# Inside IPSET_ATTR_DATA: of a set, and of an entry.
_IPSET_ATTR_IP = 1
_IPSET_ATTR_PORT = 4
_IPSET_ATTR_PORT_TO = 5
_IPSET_ATTR_PROTO = 7
_IPSET_ATTR_CADT_FLAGS = 8
_IPSET_ATTR_HASHSIZE = 18
_IPSET_ATTR_MAXELEM = 19
_IPSET_ATTR_IP2 = 20
_IPSET_ATTR_CIDR2 = 21
_IPSET_ATTR_PACKETS = 25

_IPSET_FLAG_WITH_COUNTERS = 1 << 3

_IPSET_ATTR_IPADDR = {Family.IPV4: 1, Family.IPV6: 2}

_PRIVATE_ERRORS = {
    4097: "protocol error",  # IPSET_ERR_PROTOCOL
    4098: "the kernel does not support this set type",  # IPSET_ERR_FIND_TYPE
    4099: "the limit on the number of sets is reached",  # IPSET_ERR_MAX_SETS
    4100: "the set is in use by a rule",  # IPSET_ERR_BUSY
    4101: "the new name is taken",  # IPSET_ERR_EXIST_SETNAME2
    4102: "the set types do not match",  # IPSET_ERR_TYPE_MISMATCH
    4103: "the element is already, or not, in the set",  # IPSET_ERR_EXIST
    4104: "invalid prefix length",  # IPSET_ERR_INVALID_CIDR
    4106: "address family not supported by the set",  # IPSET_ERR_INVALID_FAMILY
    4109: "wrong or missing address",  # IPSET_ERR_IPADDR_IPV4
    4352: f"the set is full ({MAX_ELEMENTS} entries)",  # IPSET_ERR_HASH_FULL
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
    """What kind of set a set is; a bitmap of ports has no address family."""

    type: SetType | str
    is_ipv6: bool = False
    counts: bool = False
    """Has every entry a counter of the packets that matched it?"""


class Entry(NamedTuple):
    """One element of a set; fields that its type of set does not have keep their defaults.

    `prefix_length` belongs to `second` in an ip,port,net set and is never left out: a host has
    32 or 128.
    """

    address: str = ""
    protocol: int = 0
    port: int = 0
    second: str = ""
    prefix_length: int = 0


class EntryChange(NamedTuple):
    """One entry to add, or else to delete."""

    set_name: str
    entry: Entry
    is_add: bool


class ListedSet(msgspec.Struct, frozen=True):
    """A set as the kernel holds it."""

    head: SetHead
    entries: frozenset[Entry]


def message_type(command: int) -> int:
    return (_NFNL_SUBSYS_IPSET << 8) | command


def error_text(errno: int) -> str:
    """One of ipset's own errors in words; empty for an ordinary error number."""
    return _PRIVATE_ERRORS.get(errno, "")


def _start(name: str | None = None) -> bytes:
    head = codec.nfgen(Family.IPV4.af) + codec.attr_u8(_IPSET_ATTR_PROTOCOL, PROTOCOL_VERSION)
    return head + codec.attr_str(_IPSET_ATTR_SETNAME, name) if name is not None else head


def format_protocol() -> bytes:
    """Body of IPSET_CMD_PROTOCOL."""
    return _start()


def format_name(name: str) -> bytes:
    """Body of a message that needs the set's name alone: IPSET_CMD_LIST, IPSET_CMD_DESTROY."""
    return _start(name)


def _set_af(head: SetHead) -> int:
    if head.type == SetType.PORT:
        return _AF_UNSPEC
    return Family.IPV6.af if head.is_ipv6 else Family.IPV4.af


def format_type_request(head: SetHead) -> bytes:
    """Body of IPSET_CMD_TYPE: which revisions of a set type the kernel has (it loads one)."""
    return (
        _start()
        + codec.attr_str(_IPSET_ATTR_TYPENAME, head.type)
        + codec.attr_u8(_IPSET_ATTR_FAMILY, _set_af(head))
    )


def parse_revision(body: bytes) -> int:
    """The newest revision the kernel has."""
    return codec.parse_attrs(body, 4)[_IPSET_ATTR_REVISION][0]


def format_create(name: str, head: SetHead, revision: int) -> bytes:
    """Body of IPSET_CMD_CREATE."""
    if head.type == SetType.PORT:
        data = codec.attr_be16(_IPSET_ATTR_PORT | _BE, 0) + codec.attr_be16(
            _IPSET_ATTR_PORT_TO | _BE, _LAST_PORT
        )
    else:
        data = codec.attr_be32(_IPSET_ATTR_HASHSIZE | _BE, HASH_SIZE) + codec.attr_be32(
            _IPSET_ATTR_MAXELEM | _BE, MAX_ELEMENTS
        )
    if head.counts:
        data += codec.attr_be32(_IPSET_ATTR_CADT_FLAGS | _BE, _IPSET_FLAG_WITH_COUNTERS)
    return (
        _start(name)
        + codec.attr_str(_IPSET_ATTR_TYPENAME, head.type)
        + codec.attr_u8(_IPSET_ATTR_REVISION, revision)
        + codec.attr_u8(_IPSET_ATTR_FAMILY, _set_af(head))
        + codec.attr_nested(_IPSET_ATTR_DATA, data)
    )


def format_entries(name: str, entries: Iterable[Entry]) -> bytes:
    """Body of IPSET_CMD_ADD or IPSET_CMD_DEL for many entries of one set."""
    # As soon as there is a list the kernel insists on line numbers, of the message and of entries.
    members = b"".join(
        codec.attr_nested(
            _IPSET_ATTR_DATA, _format_entry(entry), codec.attr_be32(_IPSET_ATTR_LINENO | _BE, n)
        )
        for n, entry in enumerate(entries, 1)
    )
    return (
        _start(name)
        + codec.attr_be32(_IPSET_ATTR_LINENO | _BE, 0)
        + codec.attr_nested(_IPSET_ATTR_ADT, members)
    )


def _format_entry(entry: Entry) -> bytes:
    parts = []
    if entry.address:
        parts.append(_format_address(_IPSET_ATTR_IP, entry.address))
    if entry.port or not entry.address:
        parts.append(codec.attr_be16(_IPSET_ATTR_PORT | _BE, entry.port))
    if entry.protocol:
        parts.append(codec.attr_u8(_IPSET_ATTR_PROTO, entry.protocol))
    if entry.second:
        parts.append(_format_address(_IPSET_ATTR_IP2, entry.second))
    if entry.prefix_length:
        parts.append(codec.attr_u8(_IPSET_ATTR_CIDR2, entry.prefix_length))
    return b"".join(parts)


def _format_address(kind: int, address: str) -> bytes:
    inner = _IPSET_ATTR_IPADDR[family_of(address)] | _BE
    return codec.attr_nested(kind, codec.attr(inner, pack_address(address)))


def parse_head(body: bytes) -> SetHead | None:
    """What kind of set it is, from a listing's first message; None in its later ones."""
    attrs = codec.parse_attrs(body, 4)
    if _IPSET_ATTR_TYPENAME not in attrs:
        return None
    name = codec.text(attrs[_IPSET_ATTR_TYPENAME])
    is_ipv6 = attrs.get(_IPSET_ATTR_FAMILY, b"\0")[0] == Family.IPV6.af
    data = codec.parse_attrs(attrs.get(_IPSET_ATTR_DATA, b""))
    counts = bool(codec.be(data.get(_IPSET_ATTR_CADT_FLAGS, b"")) & _IPSET_FLAG_WITH_COUNTERS)
    return SetHead(SetType(name) if name in set(SetType) else name, is_ipv6, counts)


def parse_entries(body: bytes, set_type: SetType | str) -> Iterator[Entry]:
    """The entries in one message of a listing (or in an IPSET_CMD_ADD or IPSET_CMD_DEL)."""
    return (_parse_entry(attrs, set_type) for attrs in _members(body))


def parse_counters(body: bytes, set_type: SetType | str) -> Iterator[tuple[Entry, int]]:
    """The entries in one message of a listing, each with the packets it has counted."""
    for attrs in _members(body):
        yield _parse_entry(attrs, set_type), codec.be(attrs.get(_IPSET_ATTR_PACKETS, b""))


def _members(body: bytes) -> Iterator[dict[int, bytes]]:
    adt = codec.parse_attrs(body, 4).get(_IPSET_ATTR_ADT, b"")
    for kind, data in codec.iter_attrs(adt):
        if kind == _IPSET_ATTR_DATA:
            yield codec.parse_attrs(data)


def _parse_entry(attrs: dict[int, bytes], set_type: SetType | str) -> Entry:
    second = _parse_address(attrs.get(_IPSET_ATTR_IP2, b""))
    prefix_length = 0
    if set_type == SetType.IP_PORT_NET:
        # Without a prefix length it is a host.
        cidr = attrs.get(_IPSET_ATTR_CIDR2)
        prefix_length = cidr[0] if cidr else family_of(second).bits
    return Entry(
        address=_parse_address(attrs.get(_IPSET_ATTR_IP, b"")),
        protocol=attrs.get(_IPSET_ATTR_PROTO, b"\0")[0],
        port=codec.be(attrs.get(_IPSET_ATTR_PORT, b"")),
        second=second,
        prefix_length=prefix_length,
    )


def _parse_address(raw: bytes) -> str:
    return next((unpack_address(packed) for _, packed in codec.iter_attrs(raw)), "")
