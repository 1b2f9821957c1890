"""Sockets made inside a host of the lab.

One place that knows address families, socket kinds and the options probes and echo servers share.
A socket keeps working in its namespace after the thread has left it.
"""

from __future__ import annotations

import socket
import struct
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol as Seam

from kubeproxy.facts.ids import Family, Protocol

_KERNEL_SCTP = Path("/proc/net/sctp")
_RECEIVE_ERRORS = {
    # Numbers of <linux/in.h> and <linux/in6.h>, which Python has no names for.
    Family.IPV4: (socket.IPPROTO_IP, 11),
    Family.IPV6: (socket.IPPROTO_IPV6, 25),
}


class Hosts(Seam):
    """What sockets need of `Namespaces`: a way to enter a host for a moment."""

    def inside(self, host: str) -> AbstractContextManager[None]: ...


def has_kernel_sctp() -> bool:
    """Whether SCTP sockets are the kernel's; else the lab speaks SCTP itself (`raw_sctp_socket`).

    Not both: a kernel that knows SCTP aborts the associations it knows nothing of.
    """
    return _KERNEL_SCTP.exists()


def bound_socket(
    hosts: Hosts, host: str, family: Family, protocol: Protocol, *, address: str = "", port: int = 0
) -> socket.socket:
    """A non-blocking socket of a host, bound, by default to any address and port."""
    is_stream = protocol is not Protocol.UDP
    kind = socket.SOCK_STREAM if is_stream else socket.SOCK_DGRAM
    with hosts.inside(host):
        sock = socket.socket(family.af, kind, protocol.number)
    try:
        sock.setblocking(False)
        if port and is_stream:
            # Not where the kernel chooses the port: it may then give two sockets the same one.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is Family.IPV6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if protocol is Protocol.SCTP:
            # Without this an association goes on trying after an ICMP error.
            sock.setsockopt(*_RECEIVE_ERRORS[family], 1)
        if is_stream:
            # Closing with a reset leaves no TIME_WAIT behind, so fixed ports can be used again.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.bind((address or family.wildcard, port))
    except BaseException:
        sock.close()
        raise
    return sock


def raw_sctp_socket(hosts: Hosts, host: str, family: Family) -> socket.socket:
    """A non-blocking raw socket that sees every SCTP packet delivered to a host."""
    return _raw(hosts, host, family, Protocol.SCTP.number)


def icmp_socket(hosts: Hosts, host: str, family: Family) -> socket.socket:
    """A non-blocking raw socket that sees every ICMP message delivered to a host."""
    icmp = socket.IPPROTO_ICMP if family is Family.IPV4 else socket.IPPROTO_ICMPV6
    return _raw(hosts, host, family, icmp)


def _raw(hosts: Hosts, host: str, family: Family, number: int) -> socket.socket:
    with hosts.inside(host):
        sock = socket.socket(family.af, socket.SOCK_RAW, number)
    sock.setblocking(False)
    return sock
