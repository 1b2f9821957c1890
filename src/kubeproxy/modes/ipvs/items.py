"""What the mode may want in the kernel, beside iptables rules.

    IpSet          a named set                                  → what it is
    SetEntry       one element of a set                         → PRESENT
    VirtualServer  where traffic arrives                        → how it is balanced, and to whom
    ServiceLink    the dummy link that carries service addresses → PRESENT
    BoundAddress   a service address on that link               → PRESENT

A virtual server and its real servers are one item, so that one changed endpoint is found by
comparing one value, and what is sent is only what differs in it.
"""

from __future__ import annotations

from enum import Enum, StrEnum

from msgspec import Struct

from kubeproxy.facts.address import join_host_port

PERSISTENT = 0x1
"""Flag of a virtual server: a client stays with its real server for a time."""
HASH_PORT = 0x10
"""Flag of a virtual server, for the mh scheduler: hash the source port as well."""
MASQUERADE = 0
"""The forwarding method: addresses are translated, whatever the network between."""


class Presence(Enum):
    """The value of items that have nothing to them but being there."""

    PRESENT = "present"


PRESENT = Presence.PRESENT


class SetKind(StrEnum):
    """The value is the kernel's name of the set type."""

    IP = "hash:ip"
    IP_PORT = "hash:ip,port"
    IP_PORT_IP = "hash:ip,port,ip"
    IP_PORT_NET = "hash:ip,port,net"
    PORT = "bitmap:port"


class SetSpec(Struct, frozen=True, gc=False):
    """What a set is; a bitmap of ports knows no address family."""

    kind: str
    is_ipv6: bool = False


class IpSet(Struct, frozen=True, gc=False):
    name: str


class SetEntry(Struct, frozen=True, gc=False):
    """Fields a set's type does not have keep their defaults.

    `prefix_length` makes `second` a network; a host has 32 or 128, never 0.
    """

    set_name: str
    address: str = ""
    protocol: int = 0
    port: int = 0
    second: str = ""
    prefix_length: int = 0


class VirtualServer(Struct, frozen=True, gc=False):
    protocol: int
    address: str
    port: int

    def __str__(self) -> str:
        name = PROTOCOL_NAMES.get(self.protocol, str(self.protocol))
        return f"{join_host_port(self.address, self.port)}/{name}"


PROTOCOL_NAMES = {6: "TCP", 17: "UDP", 132: "SCTP"}


class Destination(Struct, frozen=True, gc=False):
    """A real server. Wanted ones have weight 1; the kernel may show others."""

    address: str
    port: int
    weight: int = 1
    forward: int = MASQUERADE

    @property
    def place(self) -> tuple[str, int]:
        return (self.address, self.port)


class ServerSpec(Struct, frozen=True):
    """How a virtual server balances, and its real servers in the order of `place`."""

    scheduler: str
    flags: int
    timeout_seconds: int
    destinations: tuple[Destination, ...] = ()

    def has_head_of(self, other: ServerSpec) -> bool:
        """Is everything equal but the real servers?"""
        return (self.scheduler, self.flags, self.timeout_seconds) == (
            other.scheduler,
            other.flags,
            other.timeout_seconds,
        )


class ServiceLink(Struct, frozen=True, gc=False):
    name: str


class BoundAddress(Struct, frozen=True, gc=False):
    address: str
