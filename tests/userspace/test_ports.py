"""Port ranges and who has which port of them."""

from __future__ import annotations

import pytest

from kubeproxy.errors import ConfigError, Rejected
from kubeproxy.modes.userspace.sinks.ports import (
    ANY_PORT,
    PortAllocator,
    PortRange,
    parse_port_range,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("  ", None),
        ("0", None),
        ("0-0", None),
        ("8000", PortRange(8000, 8000)),
        ("8000-8010", PortRange(8000, 8010)),
        (" 8000-8010 ", PortRange(8000, 8010)),
        ("8000+10", PortRange(8000, 8010)),
        ("65535", PortRange(65535, 65535)),
    ],
)
def test_ranges_are_written_in_three_ways(text: str, expected: PortRange | None) -> None:
    """Nothing, or beginning at 0, means any port."""
    assert parse_port_range(text) == expected


@pytest.mark.parametrize(
    "text", ["a", "1-", "-1", "1-2-3", "1+2-3", "65536", "65530+10", "9-8", "1 - 2", "²"]
)
def test_a_bad_range_is_named_with_the_reason(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid port range"):
        parse_port_range(text)


def allocator(first: int, last: int, start: int = 0) -> PortAllocator:
    return PortAllocator(PortRange(first, last), lambda _size: start)


def free(ports: PortAllocator) -> list[int]:
    """Candidates until they end."""
    found: list[int] = []
    with pytest.raises(Rejected, match="no remaining ports left to allocate"):
        found.extend(ports.candidates())
    return found


def test_without_a_range_the_kernel_chooses() -> None:
    assert list(PortAllocator(None, lambda size: size).candidates()) == [ANY_PORT]


def test_candidates_go_upward_and_round_from_a_random_one() -> None:
    assert free(allocator(8000, 8003, start=2)) == [8002, 8003, 8000, 8001]


def test_a_taken_port_is_no_candidate_until_released() -> None:
    ports = allocator(8000, 8002)
    ports.take(8001)
    assert free(ports) == [8000, 8002]
    ports.release(8001)
    ports.release(9999)
    assert free(ports) == [8000, 8001, 8002]
