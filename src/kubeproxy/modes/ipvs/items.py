"""What the mode may want in the kernel, beside iptables rules.

    IpSet          a named set                                   → what kind of set it is
    SetEntry       one element of a set                          → PRESENT
    VirtualServer  where traffic arrives                         → how it is balanced, and to whom
    ServiceLink    the dummy link that carries service addresses → PRESENT
    BoundAddress   a service address on that link                → PRESENT

A virtual server and its real servers are one item, so that one changed endpoint is found by
comparing one value, and only what differs in it is sent. How long real servers drain is part of it
as well, although the kernel does not keep that and the sink has to remember it: of two Services
that claim one place, the one that has it must be the one whose limit holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Protocol
from kubeproxy.kernel.ipset.wire import SetHead
from kubeproxy.kernel.ipvs.wire import IP_VS_CONN_F_MASQ
from kubeproxy.modes.netfilter.items import RuleItem, RuleValue

Place: TypeAlias = tuple[str, int]
"""A real server's address and port."""


class Presence(Enum):
    """The value of items that either exist or do not."""

    PRESENT = "present"


PRESENT = Presence.PRESENT


class IpSet(Struct, frozen=True, gc=False):
    name: str


class SetEntry(Struct, frozen=True, gc=False):
    """An element of a set. Fields that the set's type does not have keep their defaults.

    `prefix_length` makes `second` a network; a host has 32 or 128, never 0.
    """

    set_name: str
    address: str = ""
    protocol: int = 0
    port: int = 0
    second: str = ""
    prefix_length: int = 0


class VirtualServer(Struct, frozen=True, gc=False):
    """An address and port with a protocol number."""

    protocol: int
    address: str
    port: int

    def __str__(self) -> str:
        name = _PROTOCOLS.get(self.protocol, self.protocol)
        return f"{join_host_port(self.address, self.port)}/{name}"


_PROTOCOLS: Mapping[int, str] = {protocol.number: protocol.value for protocol in Protocol}


class RealServer(Struct, frozen=True, gc=False):
    """One of the servers behind a virtual server. One of weight 0 takes no new connection."""

    address: str
    port: int
    weight: int = 1
    forward: int = IP_VS_CONN_F_MASQ

    @property
    def place(self) -> Place:
        return (self.address, self.port)


class ServerSpec(Struct, frozen=True):
    """How a virtual server balances, and its real servers in the order of `place`.

    `drain_seconds` is how long a removed real server may keep its connections; None if the Service
    has no limit of its own, or if this was read by a process that has not set it.
    """

    scheduler: str
    flags: int
    timeout_seconds: int
    real_servers: tuple[RealServer, ...] = ()
    drain_seconds: float | None = None

    def has_head_of(self, other: ServerSpec) -> bool:
        """Is everything equal that the kernel keeps, but the real servers?"""
        return (self.scheduler, self.flags, self.timeout_seconds) == (
            other.scheduler,
            other.flags,
            other.timeout_seconds,
        )


def is_draining(found: ServerSpec | None, wanted: ServerSpec | None) -> bool:
    """Does only that differ which was left to drain: real servers of weight 0, wanted no more?

    Limits may differ: only the process that serves knows them.
    """
    if found is None or wanted is None or not found.has_head_of(wanted):
        return False
    places = {real.place for real in wanted.real_servers}
    left = (real for real in found.real_servers if real.weight or real.place in places)
    return tuple(left) == wanted.real_servers


class ServiceLink(Struct, frozen=True, gc=False):
    name: str


class BoundAddress(Struct, frozen=True, gc=False):
    address: str


SetItem: TypeAlias = IpSet | SetEntry
SetValue: TypeAlias = SetHead | Presence
AddressItem: TypeAlias = ServiceLink | BoundAddress

Item: TypeAlias = SetItem | RuleItem | VirtualServer | AddressItem
Value: TypeAlias = SetValue | RuleValue | ServerSpec
Fragment: TypeAlias = Mapping[Item, Value]
"""What one service port, or the scaffold, wants."""
