"""Opening listening sockets the way Go's net package does, with its error texts.

A wildcard on plain `tcp` means one dual-stack socket where the kernel has IPv6, whichever of the
two wildcards was written; `tcp4` and `tcp6` are restricted to their family. Operators search for
the error text, so it is the same.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Literal

from kubeproxy.errors import ProxyError

Network = Literal["tcp", "tcp4", "tcp6"]
_NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}


class ListenError(ProxyError):
    """A listening socket could not be opened."""


def split_host_port(address: str) -> tuple[str, int]:
    """`1.2.3.4:80` or `[::1]:80` → host and port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(network: Network, host: str, port: int) -> socket.socket:
    """A non-blocking listening socket, or ListenError in Go's words."""
    try:
        return _open(network, host, port)
    except OSError as error:
        raise ListenError(_describe(network, host, port, error)) from error


def _open(network: Network, host: str, port: int) -> socket.socket:
    if network == "tcp" and host in ("", "0.0.0.0", "::"):
        try:
            return _bind(socket.AF_INET6, "::", port, dual_stack=True)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
            return _bind(socket.AF_INET, "0.0.0.0", port)
    return _bind(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)


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


def _describe(network: Network, host: str, port: int, error: OSError) -> str:
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return f"listen {network} {join_host_port(host, port)}: bind: {reason}"
