"""How often a connection has already passed through this carrier.

Why: an endpoint may be the address of a Service, even of its own: a node port of the very node, by
mistake or on purpose. Kernel translation ends there; a carrier would connect to itself for ever,
and one datagram would keep a processor busy until the endpoint goes. Promise: a chain of Services
in front of Services is carried up to `MAX_HOPS`, and a loop ends there. What comes from a socket of
ours is recognised by that socket's local address.
"""

from __future__ import annotations

from typing import TypeAlias

MAX_HOPS = 4

Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
"""A socket address as Python has it for IPv4 and for IPv6."""


class Hops:
    """The local addresses of sockets that lead to endpoints, with the hops behind each."""

    def __init__(self) -> None:
        self._behind: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self._behind)

    def of(self, client: Address) -> int:
        """The hops behind what comes from this address: 0 if it does not come from us."""
        return self._behind.get((client[0], client[1]), 0)

    def is_loop(self, client: Address) -> bool:
        return self.of(client) >= MAX_HOPS

    def enter(self, local: Address, hops: int) -> None:
        """Remember that what comes from this local address has so many hops behind it."""
        self._behind[local[0], local[1]] = hops

    def leave(self, local: Address) -> None:
        self._behind.pop((local[0], local[1]), None)
