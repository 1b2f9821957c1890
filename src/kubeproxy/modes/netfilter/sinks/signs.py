"""Which modes show in the tables of iptables, found at as little cost as possible.

Promises: looking changes nothing and runs no tool. What the running mode uses was read by its sink.
In nf_tables a chain is asked for by its name. Only tables of iptables-legacy that hold rules, and
that the running mode does not use, have to be copied. Leaves to others: what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyBackend
from kubeproxy.modes.netfilter.names import SIGNS
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.sinks.chains import find_chains
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.variant import variant_name
from kubeproxy.modes.netfilter.sinks.xtables import Xtables

TABLES = ("filter", "nat", "mangle")


class Place(NamedTuple):
    """The tables of one family that one variant of the tools shows."""

    family: Family
    is_nft: bool


PLACES = tuple(Place(family, is_nft) for family in Family for is_nft in (True, False))


def used_places(backends: Iterable[AnyBackend]) -> dict[Place, NetfilterSink]:
    """The places that these backends use, each with its sink."""
    return {
        Place(backend.family, sink.tables.is_nft): sink
        for backend in backends
        for sink in backend.kernel_sinks
        if isinstance(sink, NetfilterSink)
    }


def find_signs(used: Mapping[Place, NetfilterSink]) -> dict[Place, frozenset[str]]:
    """By place, the modes that show there; what a sink has read is not looked at again."""
    found: dict[Place, frozenset[str]] = {}
    for place in PLACES:
        if place in used:
            modes = frozenset[str]().union(*used[place].signs.values())
        else:
            modes = look(place)
        if modes:
            found[place] = modes
    return found


def look(place: Place) -> frozenset[str]:
    """The modes that show in a place now. Raises KernelError."""
    return frozenset(mode for table in TABLES for mode in _modes_in(place, table))


def _modes_in(place: Place, table: str) -> Iterator[str]:
    signs = {chains[table]: mode for mode, chains in SIGNS.items() if table in chains}
    found = find_chains(place.family, table, signs, is_nft=place.is_nft)
    return map(signs.__getitem__, found)


async def tools_at(place: Place) -> Xtables:
    """The tools that show this place."""
    return Xtables(place.family, ToolOptions(variant=await variant_name(is_nft=place.is_nft)))
