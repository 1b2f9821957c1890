"""Wanted by owner against applied."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.sync.ledger import Ledger

Fragments = Mapping[int, Mapping[str, int]]


def apply(ledger: Ledger[int, str, int], kernel: dict[str, int]) -> int:
    """Bring the kernel to what is wanted; how many items were touched."""
    changes = ledger.difference()
    for change in changes:
        assert kernel.get(change.item) == change.old
        if change.new is None:
            del kernel[change.item]
        else:
            kernel[change.item] = change.new
    ledger.confirm(changes)
    return len(changes)


def merged(fragments: Fragments) -> dict[str, int]:
    """What should hold: the smallest owner's value of each item."""
    wanted: dict[str, int] = {}
    for owner in sorted(fragments, reverse=True):
        wanted |= fragments[owner]
    return wanted


fragments = st.dictionaries(
    st.integers(0, 4), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), max_size=4)
)


@given(st.lists(fragments, min_size=1, max_size=6), st.integers(0, 3))
def test_any_history_ends_at_the_smallest_owners_values(
    history: list[Fragments], applied_every: int
) -> None:
    ledger: Ledger[int, str, int] = Ledger()
    kernel: dict[str, int] = {}
    for number, wanted in enumerate(history):
        for owner in range(5):
            ledger.put(owner, wanted.get(owner, {}))
        if applied_every and number % applied_every == 0:
            apply(ledger, kernel)
    apply(ledger, kernel)
    assert kernel == merged(history[-1])
    assert not ledger.has_pending


@given(fragments, fragments, st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2)))
def test_resync_believes_the_kernel_whatever_it_holds(
    first: Fragments, second: Fragments, found: dict[str, int]
) -> None:
    ledger: Ledger[int, str, int] = Ledger()
    for wanted in (first, second):
        for owner in range(5):
            ledger.put(owner, wanted.get(owner, {}))
    kernel = dict(found)
    ledger.resync(kernel)
    apply(ledger, kernel)
    assert kernel == merged(second)


def test_an_equal_fragment_changes_nothing() -> None:
    ledger: Ledger[int, str, int] = Ledger()
    ledger.put(1, {"a": 1})
    assert apply(ledger, {}) == 1
    ledger.put(1, {"a": 1})
    assert not ledger.has_pending


def test_back_and_forth_before_a_round_changes_nothing() -> None:
    ledger: Ledger[int, str, int] = Ledger()
    kernel: dict[str, int] = {}
    ledger.put(1, {"a": 1})
    apply(ledger, kernel)
    ledger.put(1, {"a": 2})
    ledger.remove(1)
    ledger.put(1, {"a": 1})
    assert ledger.difference() == []


def test_the_next_owner_shows_through_when_the_first_leaves() -> None:
    ledger: Ledger[int, str, int] = Ledger()
    ledger.put(2, {"a": 20})
    ledger.put(1, {"a": 10})
    ledger.put(3, {"a": 30})
    assert ledger.wanted("a") == 10
    ledger.remove(1)
    assert ledger.wanted("a") == 20
    ledger.remove(3)
    ledger.remove(2)
    assert ledger.wanted("a") is None
    assert len(ledger) == 0


def test_a_change_names_who_is_to_blame() -> None:
    ledger: Ledger[int, str, int] = Ledger()
    ledger.put(2, {"a": 1, "b": 1})
    ledger.put(1, {"c": 1})
    assert [(c.owner, c.item) for c in ledger.difference()] == [(1, "c"), (2, "a"), (2, "b")]
    apply(ledger, {})
    ledger.remove(2)
    assert {c.owner for c in ledger.difference()} == {2}


def test_what_no_owner_wants_in_the_kernel_is_removed() -> None:
    ledger: Ledger[int, str, int] = Ledger()
    kernel = {"old": 1}
    assert ledger.resync(kernel) == 1
    apply(ledger, kernel)
    assert kernel == {}


def test_resync_of_one_kind_leaves_the_others_alone() -> None:
    ledger: Ledger[int, str, int] = Ledger()
    ledger.put(1, {"a1": 1, "b1": 1})
    apply(ledger, {})
    ledger.resync({}, lambda item: item.startswith("a"))
    assert [c.item for c in ledger.difference()] == ["a1"]


def test_confirming_an_outdated_change_keeps_what_is_wanted_now() -> None:
    ledger: Ledger[int, str, int] = Ledger()
    ledger.put(1, {"a": 1})
    changes = ledger.difference()
    ledger.put(1, {"a": 2})
    ledger.confirm(changes)
    (change,) = ledger.difference()
    assert (change.old, change.new) == (1, 2)


def test_the_work_of_one_change_does_not_grow_with_the_ledger() -> None:
    ledger: Ledger[int, str, int] = Ledger()
    for owner in range(5000):
        ledger.put(owner, {f"item-{owner}": 1, "shared": 1})
    apply(ledger, {})
    ledger.put(17, {"item-17": 2, "shared": 1})
    assert [c.item for c in ledger.difference()] == ["item-17"]


def test_resync_of_some_items_leaves_the_others_alone() -> None:
    """What is absent is None; what nothing wants is removed like after a whole read."""
    ledger: Ledger[str, str, int] = Ledger()
    ledger.put("web", {"a": 1, "b": 2})
    ledger.confirm(ledger.difference())
    assert ledger.resync_some({"a": None, "stray": 3}) == 2
    assert {(c.item, c.old, c.new) for c in ledger.difference()} == {
        ("a", None, 1),
        ("stray", 3, None),
    }
    assert ledger.resync_some({"a": 1, "stray": None}) == 2
    assert not ledger.has_pending
