"""Binding sockets: proxy ports from the configured range, and ports claimed for portals.

Promises: a port of the range that another program holds is skipped, not lost; every refusal names
the port and the service port it was for. Leaves to others: which sockets are wanted.
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
_SOCKET_TYPES = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}


class Binder:
    """Makes the sockets of one family; `address` is where proxy ports listen."""

    def __init__(self, family: Family, address: str, ports: PortAllocator) -> None:
        self._family = family
        self._address = address
        self._ports = ports

    def listen(self, owner: ServicePortId) -> socket.socket:
        """Bind a socket to a proxy port and, for TCP, make it listen. Raises Rejected."""
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
        """Bind a socket that holds a port and never receives anything. Raises Rejected.

        It does not listen: so a connection that no rule diverts is refused at once, instead of
        waiting in a queue from which no process accepts.
        """
        address = claim.address or self._family.wildcard
        try:
            return self._bind(address, claim.port, claim.protocol)
        except OSError as error:
            where = f"{join_host_port(address, claim.port)}/{claim.protocol.value}"
            raise _rejected(f"Port conflict detected on port {where}", error) from error

    def close(self, handle: socket.socket) -> None:
        """Close the socket of a proxy port and free the port."""
        self._ports.release(port_of(handle))
        handle.close()

    def _bind(self, address: str, port: int, protocol: Protocol) -> socket.socket:
        handle = socket.socket(self._family.af, _SOCKET_TYPES[protocol])
        try:
            if self._family is Family.IPV6:
                # Otherwise `::` would take the port in IPv4 as well, where the instance of the
                # other family needs it.
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
