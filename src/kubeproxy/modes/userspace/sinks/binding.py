"""Binding sockets: proxy ports from the configured range, and ports claimed for portals.

Promises: a port of the range that somebody else has is skipped, not lost; every refusal names the
port and whom it was for. Leaves to others: which sockets are wanted.
"""

from __future__ import annotations

import errno
import os
import socket

from kubeproxy.errors import Rejected
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Family, Protocol, ServicePortId
from kubeproxy.modes.userspace.items import Claim
from kubeproxy.modes.userspace.sinks.ports import PortAllocator

BACKLOG = 4096
_FAMILIES = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_WILDCARDS = {Family.IPV4: "0.0.0.0", Family.IPV6: "::"}
_TRANSPORTS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}


def listen_address(family: Family, bind_address: str) -> str:
    """The address to listen on: the configured one, or all if that is of the other family."""
    is_ipv6 = ":" in bind_address
    if bind_address and is_ipv6 == (family is Family.IPV6):
        return bind_address
    return _WILDCARDS[family]


def is_wildcard(address: str) -> bool:
    return address in _WILDCARDS.values()


class Binder:
    """Makes the sockets of one family."""

    def __init__(self, family: Family, address: str, ports: PortAllocator) -> None:
        self._family = family
        self._address = address
        self._ports = ports

    def listen(self, owner: ServicePortId) -> socket.socket:
        """A socket on a proxy port, listening if it is TCP. Raises Rejected."""
        refusal: OSError | None = None
        for port in self._ports.candidates():
            try:
                handle = self._bind(self._address, port, owner.protocol)
                if owner.protocol is Protocol.TCP:
                    handle.listen(BACKLOG)
            except OSError as error:
                refusal = error
                if error.errno != errno.EADDRINUSE:
                    break
            else:
                self._ports.take(port_of(handle))
                return handle
        raise _rejected(f"cannot open a proxy port on {self._address} for {owner}", refusal)

    def claim(self, claim: Claim) -> socket.socket:
        """A socket that holds a port and never receives anything. Raises Rejected.

        It does not listen: a connection that no rule diverts is refused at once instead of being
        accepted by nobody.
        """
        address = claim.address or _WILDCARDS[self._family]
        try:
            return self._bind(address, claim.port, claim.protocol)
        except OSError as error:
            where = f"{join_host_port(address, claim.port)}/{claim.protocol.value}"
            raise _rejected(f"Port conflict detected on port {where}", error) from error

    def close(self, handle: socket.socket) -> None:
        """Close a listening socket; its port is free again."""
        self._ports.release(port_of(handle))
        handle.close()

    def _bind(self, address: str, port: int, protocol: Protocol) -> socket.socket:
        handle = socket.socket(_FAMILIES[self._family], _TRANSPORTS[protocol])
        try:
            if self._family is Family.IPV6:
                handle.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            handle.setblocking(False)
            handle.bind((address, port))
        except OSError:
            handle.close()
            raise
        return handle


def port_of(handle: socket.socket) -> int:
    return int(handle.getsockname()[1])


def _rejected(what: str, error: OSError | None) -> Rejected:
    number = (error.errno if error else None) or errno.EADDRINUSE
    return Rejected(f"{what}: {os.strerror(number)}", errno=number)
