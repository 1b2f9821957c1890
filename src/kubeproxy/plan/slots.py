"""Shares as slots: which endpoint stands in which place of a table. Pure.

A kernel chooses a number from 0 to the number of slots; the slot of that number has the endpoint.
Weights are nothing but slots that repeat. The same endpoints and weights give the same slots on
every node and after every restart: nothing depends on arrival, process or machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import gcd

MOST_SLOTS = 1024
"""The limit of slots of a pool whose endpoints have weights, unless it has more endpoints."""

FEW_SLOTS = 128
"""The same where each slot is a rule of its own."""

TABLE_SIZES = (1021, 4093, 16381, 65521)
"""Sizes of consistent tables: primes. Each serves up to a quarter as many endpoints.

The size is part of the hash: where it changes, nearly all flows move. So it must not follow the
number of endpoints; it changes where a pool grows from 255 to 256, 1,023 to 1,024, and so on.
"""
FEW_TABLE_SIZES = (251, *TABLE_SIZES)
"""The same where each slot is a rule of its own: 251 serve up to 62 endpoints."""


def bounded_weights(weights: Sequence[int], most: int = MOST_SLOTS) -> tuple[int, ...]:
    """These weights in lowest terms; if their sum is above `most`, the nearest whose sum is not.

    None becomes 0: each endpoint has one slot at least. What is left after rounding down goes to
    the largest remainders, of equal ones to the first.
    """
    divisor = gcd(*weights)
    reduced = tuple(weight // divisor for weight in weights)
    total, room = sum(reduced), max(most, len(weights))
    if total <= room:
        return reduced
    spare = room - len(reduced)
    beyond = total - len(reduced)
    # Each has its first slot; the rest is shared out by what each is above 1.
    floors = [(weight - 1) * spare // beyond for weight in reduced]
    order = sorted(range(len(reduced)), key=lambda i: (-((reduced[i] - 1) * spare % beyond), i))
    for index in order[: spare - sum(floors)]:
        floors[index] += 1
    return tuple(1 + floor for floor in floors)


def repeated_slots(weights: Sequence[int]) -> tuple[int, ...]:
    """Each index as often as its weight, one after the other: for a choice at random."""
    return tuple(index for index, weight in enumerate(weights) for _ in range(weight))


def rotating_slots(weights: Sequence[int]) -> tuple[int, ...]:
    """Each index as often as its weight, spread evenly: for a choice in turn.

    Each has one turn in each of as many equal parts of a cycle as its weight; the phase within
    its part differs from index to index, so that the light ones do not meet in the middle.
    """
    count = len(weights)
    turns = [
        ((turn + (index + 0.5) / count) / weight, index)
        for index, weight in enumerate(weights)
        for turn in range(weight)
    ]
    return tuple(index for _, index in sorted(turns))


def consistent_slots(
    names: Sequence[str], weights: Sequence[int] = (), size: int = 0
) -> tuple[int, ...]:
    """A Maglev table: when a name goes, few slots change but those it had.

    Every name prefers slots in an order of its own, a permutation that its hash chooses. In turn,
    each takes the first slot of its order that is free; a weight is that many turns per round.
    (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016.)
    """
    size = size or table_size(len(names))
    table = [-1] * size
    turns = rotating_slots(bounded_weights(weights, size)) if weights else range(len(names))
    places = [_permutation(name, size) for name in names]
    free = size
    while free:
        for index in turns:
            place, skip = places[index]
            while table[place] >= 0:
                place = (place + skip) % size
            table[place] = index
            places[index] = place, skip
            free -= 1
            if not free:
                break
    return tuple(table)


def table_size(count: int, *, few: bool = False) -> int:
    """The size of the consistent table for so many endpoints."""
    sizes = FEW_TABLE_SIZES if few else TABLE_SIZES
    return next((size for size in sizes if count <= size // 4), sizes[-1])


def _permutation(name: str, size: int) -> tuple[int, int]:
    """Where a name's order of slots begins, and by which step it goes on; `size` is prime."""
    digest = blake2b(name.encode(), digest_size=16).digest()
    start, step = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
    return start % size, step % (size - 1) + 1
