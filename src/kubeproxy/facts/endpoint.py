"""What we know about endpoints: an address and port behind a Service, and slices of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Protocol, ServiceName

NO_HINTS: frozenset[str] = frozenset()


class Endpoint(Struct, frozen=True, gc=False, omit_defaults=True):
    """One address and port that may serve a service port."""

    address: str
    port: int
    is_local: bool = False
    is_ready: bool = True
    is_serving: bool = True
    is_terminating: bool = False
    node_name: str = ""
    zone_hints: frozenset[str] = NO_HINTS
    node_hints: frozenset[str] = NO_HINTS

    @property
    def text(self) -> str:
        """`ip:port` / `[ip]:port`: the endpoint's identity, and its place in sorted order."""
        return join_host_port(self.address, self.port)


class PortKey(NamedTuple):
    """What joins a slice's port to a Service's port: the name and the protocol, not the number."""

    name: str
    protocol: Protocol


class SliceFacts(Struct, frozen=True, gc=False):
    """One EndpointSlice, spread out: for each of its ports the endpoints that serve it."""

    service: ServiceName
    name: str
    endpoints: tuple[tuple[PortKey, tuple[Endpoint, ...]], ...]


def merge_slices(slices: Iterable[SliceFacts]) -> Mapping[PortKey, tuple[Endpoint, ...]]:
    """Endpoints per port over all slices of one Service, sorted by their text.

    Slices are taken in the order of their names, so the result does not depend on arrival.
    """
    merged: dict[PortKey, dict[str, Endpoint]] = {}
    for facts in sorted(slices, key=_slice_name):
        for key, endpoints in facts.endpoints:
            _merge_into(merged.setdefault(key, {}), endpoints)
    return {key: _in_order(found) for key, found in merged.items() if found}


def _slice_name(facts: SliceFacts) -> str:
    return facts.name


def _merge_into(found: dict[str, Endpoint], endpoints: Sequence[Endpoint]) -> None:
    """A running endpoint beats a terminating one, whichever slice comes first."""
    if not [e for e in endpoints if e.is_terminating]:
        found.update(_by_text(endpoints))
        return
    for endpoint in endpoints:
        text = endpoint.text
        if text not in found or not endpoint.is_terminating:
            found[text] = endpoint


def _by_text(endpoints: Sequence[Endpoint]) -> Mapping[str, Endpoint]:
    """Endpoints of one slice, so of one family, by `text`. Spelled out: a Service may have many."""
    if endpoints and ":" in endpoints[0].address:
        return {f"[{e.address}]:{e.port}": e for e in endpoints}
    return {f"{e.address}:{e.port}": e for e in endpoints}


def _in_order(found: Mapping[str, Endpoint]) -> tuple[Endpoint, ...]:
    return tuple(map(found.__getitem__, sorted(found)))
