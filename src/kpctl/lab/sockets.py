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

from kubeproxy.errors import Unsupported
from kubeproxy.facts.ids import Family, Protocol

_KIND = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
_KERNEL_SCTP = Path("/proc/net/sctp")


class Hosts(Seam):
    """What sockets need of `Namespaces`: a way to enter a host for a moment."""

    def inside(self, host: str) -> AbstractContextManager[None]: ...


def bound_socket(
    hosts: Hosts, host: str, family: Family, protocol: Protocol, *, address: str = "", port: int = 0
) -> socket.socket:
    """A non-blocking TCP or UDP socket of a host, bound, by default to any address and port."""
    with hosts.inside(host):
        sock = socket.socket(family.af, _KIND[protocol])
    try:
        sock.setblocking(False)
        if port and protocol is Protocol.TCP:
            # Not where the kernel chooses the port: it may then give two sockets the same one.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is Family.IPV6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if protocol is Protocol.TCP:
            # Closing with a reset leaves no TIME_WAIT behind, so fixed ports can be used again.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.bind((address or family.wildcard, port))
    except BaseException:
        sock.close()
        raise
    return sock


def sctp_socket(
    hosts: Hosts, host: str, family: Family, *, kernel_sctp: Path = _KERNEL_SCTP
) -> socket.socket:
    """A non-blocking raw socket that sees every SCTP packet delivered to a host."""
    if kernel_sctp.exists():
        raise Unsupported(
            "the kernel's own SCTP is loaded and would abort the lab's associations: rmmod sctp"
        )
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
