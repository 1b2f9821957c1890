"""sock_diag messages: the socket that has sent a flow, found and closed. Pure.

Constants have the names of the kernel's sock_diag.h, inet_diag.h and tcp_states.h. Leaves to
others: sending (`kernel.sock_diag.table`), and which sockets.

A request names a socket by both its ends. What the kernel finds by them may be another one: where
no socket has both ends, it takes one that listens on the local port, or an unconnected one of UDP.
So what it finds is compared (`is_sender`), and closed by its cookie, which no other socket has.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from msgspec import Struct

from kubeproxy.facts.ids import Family, Protocol

SOCK_DIAG_BY_FAMILY = 20
SOCK_DESTROY = 21

_TCP_TIME_WAIT = 6
_TCP_CLOSE = 7
_TCP_LISTEN = 10
_NOT_OPEN = frozenset({_TCP_TIME_WAIT, _TCP_CLOSE, _TCP_LISTEN})

_ALL_STATES = 0xFFFFFFFF
_NO_COOKIE = b"\xff" * 8
_COOKIE_BYTES = 8
_PORT_BYTES = 2
_ADDRESS_BYTES = 16
_MAPPED = bytes(10) + b"\xff\xff"
"""Begins the IPv6 form of an IPv4 address, which a socket of both families has."""

_REQUEST = struct.Struct("=BBxxI")
_ID = struct.Struct(f"=2s2s{_ADDRESS_BYTES}s{_ADDRESS_BYTES}s4x{_COOKIE_BYTES}s")
_REPLY = struct.Struct("=BBxx")


class Ends(NamedTuple):
    """Who sent a flow, and where to: each as packed address and port."""

    source: bytes
    destination: bytes


class Closed(Struct, frozen=True):
    """How many sockets were closed, and why others were not."""

    count: int = 0
    error: str = ""


class FoundSocket(Struct, frozen=True, gc=False):
    """A socket as the kernel shows it: both ends as packed address and port."""

    is_open: bool
    local: bytes
    remote: bytes
    cookie: bytes

    def is_sender(self, source: bytes, destination: bytes) -> bool:
        """Has this very socket sent a flow from here to there?"""
        return self.is_open and (self.local, self.remote) == (source, destination)


def format_find(family: Family, protocol: Protocol, source: bytes, destination: bytes) -> bytes:
    """Body of SOCK_DIAG_BY_FAMILY for the socket with these ends."""
    if protocol is Protocol.UDP:
        # Swapped there, and not in SOCK_DESTROY, for historical reasons (net/ipv4/udp_diag.c).
        source, destination = destination, source
    return _format(family, protocol, source, destination, _NO_COOKIE)


def format_destroy(family: Family, protocol: Protocol, found: FoundSocket) -> bytes:
    """Body of SOCK_DESTROY for a socket that was found."""
    return _format(family, protocol, found.local, found.remote, found.cookie)


def _format(
    family: Family, protocol: Protocol, source: bytes, destination: bytes, cookie: bytes
) -> bytes:
    return _REQUEST.pack(family.af, protocol.number, _ALL_STATES) + _ID.pack(
        source[-_PORT_BYTES:],
        destination[-_PORT_BYTES:],
        source[:-_PORT_BYTES],
        destination[:-_PORT_BYTES],
        cookie,
    )


def parse_socket(body: bytes, family: Family) -> FoundSocket | None:
    """The socket in the body of a reply; None if it is cut short."""
    if len(body) < _REPLY.size + _ID.size:
        return None
    _, state = _REPLY.unpack_from(body)
    local_port, remote_port, local, remote, cookie = _ID.unpack_from(body, _REPLY.size)
    return FoundSocket(
        state not in _NOT_OPEN,
        _address(local, family) + local_port,
        _address(remote, family) + remote_port,
        cookie,
    )


def _address(packed: bytes, family: Family) -> bytes:
    if family is Family.IPV6:
        return packed
    return packed[12:] if packed.startswith(_MAPPED) else packed[:4]
