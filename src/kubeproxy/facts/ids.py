"""Names of things: address families, protocols, services and service ports.

These are the keys of every table in the program. They are frozen, ordered and hashable, so that
"sorted" and "same key" mean the same everywhere.

Names of Services are structs, not named tuples: without the garbage collector's part each takes 32
bytes less, and a cluster has several for every Service. As JSON they are lists.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from functools import lru_cache

from msgspec import Struct


class Family(Enum):
    """An IP family; the value is the spelling of API objects, metrics and logs."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"

    # Members are singletons, so identity hashing is right; Enum's own hashes the name in Python
    # code, which shows in a cold start of 100,000 endpoints.
    __hash__ = object.__hash__

    @property
    def bits(self) -> int:
        """Length of an address in bits."""
        return 32 if self is Family.IPV4 else 128

    @property
    def other(self) -> Family:
        return Family.IPV6 if self is Family.IPV4 else Family.IPV4

    @property
    def zero_cidr(self) -> str:
        """The network that contains every address of the family."""
        return "0.0.0.0/0" if self is Family.IPV4 else "::/0"

    @property
    def wildcard(self) -> str:
        """The address that stands for all addresses of a host."""
        return "0.0.0.0" if self is Family.IPV4 else "::"

    @property
    def loopback(self) -> str:
        return "127.0.0.1" if self is Family.IPV4 else "::1"

    @property
    def loopback_cidr(self) -> str:
        return "127.0.0.0/8" if self is Family.IPV4 else "::1/128"

    @property
    def af(self) -> int:
        """The address family as Linux numbers it (AF_INET, AF_INET6)."""
        return 2 if self is Family.IPV4 else 10


class Protocol(StrEnum):
    """Transport protocols a Service port can have; the value is the API spelling."""

    TCP = "TCP"
    UDP = "UDP"
    SCTP = "SCTP"

    @property
    def number(self) -> int:
        """IANA protocol number."""
        return _PROTOCOL_NUMBERS[self]

    @property
    def lower_name(self) -> str:
        """The spelling rule texts use."""
        return self.value.lower()


_PROTOCOL_NUMBERS = {Protocol.TCP: 6, Protocol.UDP: 17, Protocol.SCTP: 132}


class ServiceName(Struct, frozen=True, order=True, gc=False, array_like=True):
    """Namespace and name of a Service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ServicePortId(Struct, frozen=True, order=True, gc=False, array_like=True):
    """One port of one Service: the unit of planning, and the owner of items.

    Sorts by namespace, name, port name, protocol; that order decides who wins a contested item.
    """

    namespace: str
    name: str
    port: str
    protocol: Protocol

    @property
    def service(self) -> ServiceName:
        return ServiceName(self.namespace, self.name)

    @property
    def label(self) -> str:
        """The name as upstream prints it in comments and logs: `ns/name` or `ns/name:port`."""
        return _label(self.namespace, self.name, self.port)

    def __str__(self) -> str:
        return f"{self.label}/{self.protocol.value}"


@lru_cache(maxsize=16)
def _label(namespace: str, name: str, port: str) -> str:
    """The frontends of a service port are rendered one after the other: they share one copy."""
    return f"{namespace}/{name}:{port}" if port else f"{namespace}/{name}"
