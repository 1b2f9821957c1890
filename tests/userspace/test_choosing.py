"""What each algorithm chooses, with drawing and shuffling as arguments."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpctl.flows.spread import unevenness
from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.userspace.carrier.balance import Balancer, Target
from kubeproxy.modes.userspace.carrier.choosing import Chooser

A, B, C = (Target(f"10.0.0.{n}", 80) for n in (1, 2, 3))
HASHES = pytest.mark.parametrize("algorithm", [Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH])


def keep_order(_targets: list[Target]) -> None:
    """A shuffle that leaves things as they are."""


def chooser(
    algorithm: Algorithm | None, weights: tuple[int, ...] = (), *targets: Target
) -> Chooser[Target]:
    made: Chooser[Target] = Chooser(keep_order, random.Random(1).randrange)
    made.update(targets or (A, B, C), algorithm, weights)
    return made


def spread(found: Chooser[Target], clients: int = 3000) -> Counter[str]:
    chosen = (found.choose(f"192.0.2.{number}") for number in range(clients))
    return Counter(target.address for target in chosen if target)


@pytest.mark.parametrize("algorithm", [None, Algorithm.ROUND_ROBIN])
def test_in_turn_is_the_default(algorithm: Algorithm | None) -> None:
    found = chooser(algorithm)
    assert [found.choose("x") for _ in range(4)] == [A, B, C, A]


def test_turns_of_weights_are_spread() -> None:
    found = chooser(None, (3, 2), A, B)
    assert [found.choose("x") for _ in range(5)] == [A, B, A, A, B]


@pytest.mark.parametrize(
    "algorithm", [Algorithm.RANDOM, Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH]
)
@pytest.mark.parametrize("weights", [(1, 1, 1), (5, 2, 1)], ids=str)
def test_shares_follow_weights(algorithm: Algorithm, weights: tuple[int, ...]) -> None:
    names = [target.address for target in (A, B, C)]
    given = dict(zip(names, weights, strict=True))
    assert unevenness(spread(chooser(algorithm, weights)), names, given) == ""


@HASHES
def test_a_client_meets_the_same_endpoint_in_every_process(algorithm: Algorithm) -> None:
    """Shuffled differently on each node, it must not matter."""
    one, other = Chooser[Target](random.Random(1).shuffle, random.randrange), chooser(algorithm)
    one.update((A, B, C), algorithm)
    clients = [f"192.0.2.{number}" for number in range(100)]
    assert [one.choose(c) for c in clients] == [other.choose(c) for c in clients]
    assert len({other.choose(c) for c in clients}) == 3


def test_few_clients_move_when_an_endpoint_goes() -> None:
    targets = tuple(Target(f"10.0.0.{n}", 80) for n in range(1, 11))
    clients = [f"192.0.2.{number}" for number in range(1000)]
    found = chooser(Algorithm.CONSISTENT_HASH, (), *targets)
    before = {client: found.choose(client) for client in clients}
    found.update(targets[1:], Algorithm.CONSISTENT_HASH)
    moved = [c for c in clients if before[c] != targets[0] and found.choose(c) != before[c]]
    assert len(moved) <= 50
    found.update(targets, Algorithm.CONSISTENT_HASH)
    assert {client: found.choose(client) for client in clients} == before


def test_least_connections_counts_what_is_open() -> None:
    found = chooser(Algorithm.LEAST_CONNECTIONS)
    chosen = []
    for _ in range(6):
        target = found.choose("x")
        assert target is not None
        found.began(target)
        chosen.append(target)
    assert Counter(chosen) == {A: 2, B: 2, C: 2}
    found.ended(B)
    found.ended(B)
    assert found.choose("x") == B


def test_least_connections_follows_weights() -> None:
    found = chooser(Algorithm.LEAST_CONNECTIONS, (4, 2, 1))
    open_now: Counter[Target] = Counter()
    for _ in range(14):
        target = found.choose("x")
        assert target is not None
        found.began(target)
        open_now[target] += 1
    assert open_now == {A: 8, B: 4, C: 2}


def test_an_update_to_another_algorithm_counts_connections_that_are_open() -> None:
    found = chooser(None)
    found.began(A)
    found.began(B)
    found.update((A, B, C), Algorithm.LEAST_CONNECTIONS)
    assert found.choose("x") == C


@pytest.mark.parametrize("algorithm", [None, *Algorithm])
def test_what_is_not_usable_is_passed_over(algorithm: Algorithm | None) -> None:
    found = chooser(algorithm, (1, 5, 1))
    clients = [f"192.0.2.{number}" for number in range(200)]
    chosen = {found.choose(client, lambda target: target != B) for client in clients}
    assert chosen == {A, C}


def test_the_share_of_an_unusable_one_is_shared_out_at_random() -> None:
    found = chooser(Algorithm.RANDOM)
    chosen = Counter(
        target.address
        for _ in range(2000)
        if (target := found.choose("x", lambda each: each != B)) is not None
    )
    assert unevenness(chosen, [A.address, C.address]) == ""


@pytest.mark.parametrize("algorithm", [None, *Algorithm])
def test_if_none_is_usable_one_is_chosen_all_the_same(algorithm: Algorithm | None) -> None:
    assert chooser(algorithm).choose("x", lambda _: False) in (A, B, C)


@given(
    st.sampled_from([None, *Algorithm]),
    st.lists(st.integers(1, 256), max_size=6),
    st.lists(st.sampled_from(("x", "y", "z")), max_size=20),
)
def test_what_is_chosen_is_always_one_that_serves(
    algorithm: Algorithm | None, weights: list[int], clients: list[str]
) -> None:
    targets = tuple(Target(f"10.0.0.{n}", 80) for n in range(len(weights)))
    found: Chooser[Target] = Chooser(random.shuffle, random.randrange)
    found.update(targets, algorithm, tuple(weights))
    for client in clients:
        chosen = found.choose(client)
        assert chosen in targets if targets else chosen is None


@HASHES
def test_affinity_goes_on_top(algorithm: Algorithm) -> None:
    """A client whose hash leads elsewhere after a change stays as long as its endpoint serves."""
    made = Balancer(keep_order)
    made.update((A, B, C), 60, algorithm)
    clients = [f"192.0.2.{number}" for number in range(60)]
    before = {client: made.pick(client, 0.0) for client in clients}
    made.update((A, B), 60, algorithm)
    for client in clients:
        if before[client] != C:
            assert made.pick(client, 1.0) == before[client]


def test_only_a_change_disturbs_whose_turn_it_is() -> None:
    made = Balancer(keep_order)
    made.update((A, B), 0, Algorithm.ROUND_ROBIN, (2, 1))
    assert made.pick("x", 0.0) == A
    made.update((A, B), 0, Algorithm.ROUND_ROBIN, (2, 1))
    assert made.pick("x", 0.0) == A
    assert made.pick("x", 0.0) == B
