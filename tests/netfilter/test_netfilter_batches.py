"""How large restores are: limited, and larger once much is written."""

from __future__ import annotations

from tests.netfilter.test_netfilter_sink import SCOPE, owner, section

from kubeproxy.modes.base import AnyChange
from kubeproxy.modes.netfilter.compile.batches import split


def sizes(services: int, limit: int) -> list[int]:
    changes = [
        AnyChange(owner(f"s{number}"), item, None, value)
        for number in range(services)
        for item, value in section(f"s{number}", 3).items()
    ]
    return [len(batch) for _, batch in split(changes, SCOPE, limit)]


def test_a_start_takes_fewer_restores_than_its_size_over_the_limit() -> None:
    """The kernel checks the whole table with each: those at the end are larger."""
    found = sizes(3000, 100)
    assert found[0] == found[1]
    assert found[-2] > 5 * found[0]
    assert len(found) < 0.5 * sum(found) / found[0]


def test_a_small_change_is_not_larger_than_the_limit() -> None:
    found = sizes(20, 10)
    assert max(found) == found[0]
