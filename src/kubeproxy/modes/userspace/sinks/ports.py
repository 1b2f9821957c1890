"""Proxy ports: the configured range, and which ports of it are taken.

State without I/O: the choice of the first port to try is an argument. Promises: no port is offered
while it is taken; a port that could not be bound is not lost. Leaves to others: binding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kubeproxy.errors import ConfigError, Rejected

HIGHEST_PORT = 65535
ANY_PORT = 0
"""Lets the kernel choose."""


class PortRange(NamedTuple):
    """Ports from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


def parse_port_range(text: str) -> PortRange | None:
    """The range `N`, `A-B` (to B) or `A+N` (to A+N). Raises ConfigError.

    Return None, which means any port, for an empty text and for a range that begins at 0.
    """
    words = text.strip()
    if not words:
        return None
    if "-" in words and "+" in words:
        raise _invalid(text, "use either - or +")
    if "+" in words:
        first, count = _two_numbers(text, words.split("+"))
        found = PortRange(first, first + count)
    elif "-" in words:
        found = PortRange(*_two_numbers(text, words.split("-")))
    else:
        (number,) = _numbers(text, [words])
        found = PortRange(number, number)
    if found.last > HIGHEST_PORT or found.first > HIGHEST_PORT:
        raise _invalid(text, f"the highest port is {HIGHEST_PORT}")
    if found.last < found.first:
        raise _invalid(text, "the end is before the beginning")
    return found if found.first else None


def _two_numbers(text: str, parts: list[str]) -> tuple[int, int]:
    if len(parts) != 2:
        raise _invalid(text, "write it as FIRST-LAST, FIRST+COUNT or a single port")
    first, second = _numbers(text, parts)
    return first, second


def _numbers(text: str, parts: list[str]) -> list[int]:
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise _invalid(text, "ports are numbers")
    return [int(part) for part in parts]


def _invalid(text: str, reason: str) -> ConfigError:
    return ConfigError(f'"{text}" is not a valid port range: {reason}')


class PortAllocator:
    """The free ports of a range; without a range, the kernel chooses."""

    def __init__(self, ports: PortRange | None, start_at: Callable[[int], int]) -> None:
        self._ports = ports
        self._start_at = start_at
        self._taken: set[int] = set()

    def candidates(self) -> Iterator[int]:
        """Free ports to try: from a random one upward, then from the first up to that one.

        Raises Rejected once all have been tried.
        """
        if self._ports is None:
            yield ANY_PORT
            return
        first, size = self._ports.first, self._ports.size
        start = self._start_at(size)
        for offset in range(size):
            port = first + (start + offset) % size
            if port not in self._taken:
                yield port
        raise Rejected(
            "port allocation failed; there are no remaining ports left to allocate "
            "in the accepted range"
        )

    def take(self, port: int) -> None:
        """Offer this port no more: it is bound now."""
        self._taken.add(port)

    def release(self, port: int) -> None:
        """Offer this port again; one that was never taken is ignored."""
        self._taken.discard(port)
