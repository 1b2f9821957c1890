"""How new connections are shared out among the endpoints of a pool. Pure.

A Service asks for an algorithm, its slices for weights; what the mode cannot do gives its default
and a note. A pool without weights is as it was: each endpoint counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.policy import Algorithm
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.plan.slots import (
    FEW_SLOTS,
    bounded_weights,
    consistent_slots,
    repeated_slots,
    rotating_slots,
    table_size,
)
from kubeproxy.plan.types import Pool

NOT_SUPPORTED = "is not possible in"
"""Marks the note about an algorithm."""


def effective_algorithm(service: ServiceFacts, node: NodeFacts) -> Algorithm | None:
    """What the Service asks for, if the mode can do it; None for the mode's default."""
    asked = service.policy.algorithm if service.policy else None
    return asked if asked in node.algorithms else None


def algorithm_notes(service: ServiceFacts, node: NodeFacts) -> tuple[str, ...]:
    """What the mode cannot do of what the Service asks for."""
    asked = service.policy.algorithm if service.policy else None
    if asked is None or asked in node.algorithms:
        return ()
    return (f"algorithm {asked} {NOT_SUPPORTED} {node.mode} mode: its default is used",)


def taking_part(
    endpoints: tuple[Endpoint, ...], weights: Mapping[str, int]
) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]]:
    """The endpoints that take new connections, and those that serve but have weight 0."""
    if 0 not in weights.values():
        return endpoints, ()
    idle = tuple(e for e in endpoints if weights.get(e.address) == 0)
    return (
        tuple(e for e in endpoints if weights.get(e.address) != 0),
        tuple(e for e in idle if e.is_ready or e.is_serving),
    )


def with_weights(pool: Pool, weights: Mapping[str, int]) -> Pool:
    """The pool with the weights of its endpoints, unless they are all equal."""
    if not weights or not pool:
        return pool
    own = tuple(weights.get(e.address, 1) for e in pool.endpoints)
    return pool if len(set(own)) == 1 else replace(pool, weights=bounded_weights(own))


def slots_of(pool: Pool, algorithm: Algorithm | None, *, few: bool = False) -> Sequence[int]:
    """Indices into the pool's endpoints; the algorithm chooses one of these for a connection.

    Computed where a mode needs them, not kept in the plan: a consistent table has a thousand, and
    modes whose kernel part counts by itself need none. With `few` they are as many as rules in a
    chain may be, and shares are rounded accordingly.
    """
    count = len(pool.endpoints)
    if algorithm is Algorithm.CONSISTENT_HASH and count > 1:
        names = [endpoint.text for endpoint in pool.endpoints]
        return consistent_slots(names, pool.weights, table_size(count, few=few))
    if not pool.weights:
        return range(count)
    weights = bounded_weights(pool.weights, FEW_SLOTS) if few else pool.weights
    if algorithm is Algorithm.ROUND_ROBIN:
        return rotating_slots(weights)
    return repeated_slots(weights)


def slot_count(pool: Pool, algorithm: Algorithm | None) -> int:
    """The number of slots, without computing them."""
    count = len(pool.endpoints)
    if algorithm is Algorithm.CONSISTENT_HASH and count > 1:
        return table_size(count)
    return sum(pool.weights) or count
