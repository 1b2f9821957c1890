"""What we know about endpoints: an address and port behind a Service, and slices of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Protocol, ServiceName
from kubeproxy.facts.policy import FULL_ROTATION, Rotation

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


class SliceFacts(Struct, frozen=True, gc=False, omit_defaults=True):
    """One EndpointSlice, spread out: for each of its ports the endpoints that serve it.

    `weights` has addresses of this slice whose weight is not 1, not a field of each endpoint: a
    million endpoints without weights must not pay. `ignored` is as in `ServiceFacts`.
    """

    service: ServiceName
    name: str
    endpoints: tuple[tuple[PortKey, tuple[Endpoint, ...]], ...]
    weights: tuple[tuple[str, int], ...] = ()
    ignored: tuple[str, ...] = ()


def merge_slices(slices: Iterable[SliceFacts]) -> Mapping[PortKey, tuple[Endpoint, ...]]:
    """Endpoints per port over all slices of one Service, sorted by their text.

    Slices are taken in the order of their names, so the result does not depend on arrival. What one
    slice holds in this order is not copied: nearly all Services have one slice.
    """
    merged: dict[PortKey, dict[str, Endpoint]] = {}
    last: dict[PortKey, tuple[Endpoint, ...]] = {}
    for facts in sorted(slices, key=_slice_name):
        for key, endpoints in facts.endpoints:
            _merge_into(merged.setdefault(key, {}), endpoints)
            last[key] = endpoints
    return {key: _in_order(found, last[key]) for key, found in merged.items() if found}


def merge_rotation(slices: Iterable[SliceFacts]) -> Rotation:
    """What the slices of one Service hold about shares; of two weights the first slice's counts."""
    weights: dict[str, int] = {}
    ignored: list[str] = []
    for facts in sorted(slices, key=_slice_name):
        for address, weight in facts.weights:
            weights.setdefault(address, weight)
        ignored += facts.ignored
    return Rotation(weights, ignored=tuple(ignored)) if weights or ignored else FULL_ROTATION


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


def _in_order(found: Mapping[str, Endpoint], held: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Endpoints sorted by text: the very tuple `held` if it is the same, for the sake of memory."""
    ordered = tuple(map(found.__getitem__, sorted(found)))
    return held if held == ordered else ordered
