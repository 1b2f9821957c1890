"""A packet as a node meets it, and what becomes of it: the words that all tracers share. Pure.

A tracer is given one new connection (`Arrival`) and returns every way that it can go (`Way`): where
a rule draws a random number, each outcome is followed with its probability. A way holds the steps
that led there, each with the item that decided it, so that two tracers over different items (what
is wanted, what the kernel holds) can be compared place by place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, StrEnum
from fractions import Fraction
from typing import NamedTuple

from msgspec import Struct

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.modes.base import AnyItem


class End(Enum):
    """How a chain left a packet."""

    FELL_OUT = "fell out"
    ACCEPTED = "accepted"
    DROPPED = "dropped"
    REJECTED = "rejected"


class Arrival(Struct, frozen=True):
    """A new connection as a node meets it. No `interface` means that the node itself sends it."""

    family: Family
    protocol: Protocol
    source: str
    destination: str
    port: int
    interface: str = ""

    @property
    def is_from_node(self) -> bool:
        return not self.interface


class Ruling(StrEnum):
    """What the node's rules do."""

    FORWARD = "forward"
    REJECT = "reject"
    DROP = "drop"
    UNTOUCHED = "untouched"


class Traced(Struct, frozen=True):
    """A ruling, and for FORWARD the endpoints and those that see the node as source."""

    ruling: Ruling
    endpoints: frozenset[tuple[str, int]] = frozenset()
    masqueraded: frozenset[tuple[str, int]] = frozenset()


class StepKind(StrEnum):
    """What a step is."""

    HOOK = "hook"  # a base chain, or a stage such as IPVS
    ENTER = "enter"  # another chain
    RULE = "rule"  # a rule applies: what it does follows
    LEAVE = "leave"  # back to the chain before, with nothing decided
    LOOK = "look"  # a key was found in a set or map
    MISS = "miss"  # it was not found, or something else was consulted without effect
    DO = "do"  # something happened to the packet


class Step(NamedTuple):
    """One thing on a packet's way. `text` is more about it, and `item` what decided it."""

    kind: StepKind
    name: str
    text: str = ""
    item: AnyItem | None = None


class Way(Struct, frozen=True):
    """One way a connection can go, how likely it is, and the steps that lead there."""

    end: End
    destination: str
    port: int
    is_translated: bool = False
    is_masqueraded: bool = False
    share: Fraction = Fraction(1)
    steps: tuple[Step, ...] = ()

    @property
    def endpoint(self) -> tuple[str, int]:
        return self.destination, self.port


class Untraceable(Exception):
    """The rules hold something that a tracer does not understand: better no answer than a guess."""


class Tracer(ABC):
    """Traces packets for one node and one family."""

    @abstractmethod
    def ways(self, arrival: Arrival) -> Sequence[Way]:
        """Every way the connection can go. Raises Untraceable."""

    def trace(self, arrival: Arrival) -> Traced:
        """What the rules do with a new connection."""
        return summary(self.ways(arrival))

    def spread(self, arrival: Arrival) -> dict[tuple[str, int], Fraction]:
        """How likely each endpoint is."""
        return shares(self.ways(arrival))


def summary(ways: Sequence[Way]) -> Traced:
    """All ways as one ruling. If one of them ends the packet, this is the ruling."""
    ends = {way.end for way in ways}
    if End.DROPPED in ends:
        return Traced(Ruling.DROP)
    if End.REJECTED in ends:
        return Traced(Ruling.REJECT)
    moved = [way for way in ways if way.is_translated]
    if not moved:
        return Traced(Ruling.UNTOUCHED)
    hidden = frozenset(way.endpoint for way in moved if way.is_masqueraded)
    return Traced(Ruling.FORWARD, frozenset(way.endpoint for way in moved), hidden)


def shares(ways: Sequence[Way]) -> dict[tuple[str, int], Fraction]:
    """The probability of each endpoint."""
    found: dict[tuple[str, int], Fraction] = {}
    for way in ways:
        if way.is_translated:
            found[way.endpoint] = found.get(way.endpoint, Fraction(0)) + way.share
    return found
