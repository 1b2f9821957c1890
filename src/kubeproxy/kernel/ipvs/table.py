"""The kernel's load balancer: list virtual servers and real servers, change many at once.

Why: sinks, check and clean-up speak to IPVS through these few calls. Promise: a kernel without IPVS
is `Unsupported`, a refusal is a `KernelError`, and firewall-mark services, which are never ours,
are not returned. Leaves to others: what should exist, and loading the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kubeproxy.errors import Unsupported
from kubeproxy.facts.address import family_of
from kubeproxy.kernel.ipvs import wire
from kubeproxy.kernel.ipvs.wire import Destination, Service, Timeouts
from kubeproxy.kernel.netlink import bulk
from kubeproxy.kernel.netlink.bulk import Refusal, Request
from kubeproxy.kernel.netlink.generic import find_family
from kubeproxy.kernel.netlink.socket import NETLINK_GENERIC, NetlinkSocket

NOT_SUPPORTED = "ipvs not supported by the kernel"


class IpvsTable(Protocol):
    """The calls that the sinks make; a fake in tests interprets the same messages."""

    def services(self) -> list[Service]: ...

    def destinations(self, protocol: int, address: str, port: int) -> list[Destination]: ...

    def send(self, bodies: Sequence[bytes]) -> list[Refusal]: ...

    def close(self) -> None: ...


class Ipvs:
    """IPVS of the network namespace in which this object was made."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(NETLINK_GENERIC, timeout_seconds=30)
        family = find_family(self._socket, wire.IPVS_GENL_NAME)
        if family is None:
            self._socket.close()
            raise Unsupported(NOT_SUPPORTED)
        self._family = family

    def __enter__(self) -> Ipvs:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def services(self) -> list[Service]:
        """Every virtual server that has an address, also those of other software."""
        body = wire.format_command(wire.IPVS_CMD_GET_SERVICE)
        replies = self._socket.dump(self._family, body, what="list virtual servers")
        found = (wire.parse_service(reply.body) for reply in replies)
        return [service for service in found if not service.firewall_mark]

    def destinations(self, protocol: int, address: str, port: int) -> list[Destination]:
        """The real servers of one virtual server; none if it does not exist."""
        key = wire.format_key(protocol, address, port)
        body = wire.format_service_key(wire.IPVS_CMD_GET_DEST, key)
        replies = self._socket.dump(self._family, body, what=f"list real servers of {address}")
        return [wire.parse_destination(reply.body, family_of(address)) for reply in replies]

    def send(self, bodies: Sequence[bytes]) -> list[Refusal]:
        """Carry out prepared messages in order. Return those that were refused."""
        return bulk.send_bulk(self._socket, [Request(self._family, 0, body) for body in bodies])

    def set_timeouts(self, timeouts: Timeouts) -> None:
        """Set the seconds for idle TCP, TCP after FIN, and UDP; 0 keeps the present value."""
        body = wire.format_timeouts(timeouts)
        self._socket.request(self._family, body, what="set the IPVS timeouts")

    def timeouts(self) -> Timeouts:
        body = wire.format_command(wire.IPVS_CMD_GET_CONFIG)
        replies = self._socket.request(self._family, body, what="read the IPVS timeouts")
        return wire.parse_timeouts(replies[0].body)

    def create(self, service: Service) -> None:
        body = wire.format_service(wire.IPVS_CMD_NEW_SERVICE, service)
        self._socket.request(self._family, body, what=f"create virtual server {service.address}")

    def delete(self, service: Service) -> None:
        key = wire.format_key(service.protocol, service.address, service.port)
        body = wire.format_service_key(wire.IPVS_CMD_DEL_SERVICE, key)
        self._socket.request(self._family, body, what=f"delete virtual server {service.address}")
