"""Listening sockets opened the way Go's net package does, with its error texts.

Either wildcard on plain `tcp` means one dual-stack socket where the kernel has IPv6. `tcp4` and
`tcp6` are restricted to their family. Operators search for the error text, so it is Go's. What is
served on a socket is left to the caller.
"""

from __future__ import annotations

import errno
import socket
from typing import Literal

from kubeproxy.errors import ProxyError
from kubeproxy.facts.address import family_of, join_host_port
from kubeproxy.facts.ids import Family
from kubeproxy.go.text import format_os_error

Network = Literal["tcp", "tcp4", "tcp6"]
_WILDCARDS = frozenset({"", *(family.wildcard for family in Family)})
_NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}


class ListenError(ProxyError):
    """A listening socket could not be opened."""


def listen(network: Network, host: str, port: int) -> socket.socket:
    """Return a non-blocking listening socket. Raises ListenError with Go's text."""
    try:
        return _open(network, host, port)
    except OSError as error:
        reason = format_os_error(error)
        address = join_host_port(host, port)
        raise ListenError(f"listen {network} {address}: bind: {reason}") from error


def _open(network: Network, host: str, port: int) -> socket.socket:
    if network == "tcp" and host in _WILDCARDS:
        try:
            return _bind(Family.IPV6.af, Family.IPV6.wildcard, port, dual_stack=True)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
            return _bind(Family.IPV4.af, Family.IPV4.wildcard, port)
    return _bind(family_of(host).af, host, port)


def _bind(family: int, host: str, port: int, *, dual_stack: bool = False) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not dual_stack))
        sock.bind((host, port))
        sock.listen(socket.SOMAXCONN)
    except BaseException:
        sock.close()
        raise
    return sock
