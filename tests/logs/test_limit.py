"""A limit on repeated log messages: what it allows, and that it remembers little."""

from __future__ import annotations

import weakref

from kubeproxy.logs.limit import LogLimit


class Key(str):
    """A key whose end can be noticed."""


class Messages:
    """A limit with a clock of its own."""

    def __init__(self, most_keys: int = 100) -> None:
        self.now = 0.0
        self.limit = LogLimit(60.0, burst=2, most_keys=most_keys, monotonic=lambda: self.now)

    def logged(self, *keys: str) -> list[bool]:
        return [self.limit.is_due(key) for key in keys]


def test_so_many_messages_of_a_key_per_interval() -> None:
    messages = Messages()
    assert messages.logged("a", "a", "a", "b") == [True, True, False, True]
    messages.now = 60.0
    assert messages.logged("a", "b") == [True, True]


def test_keys_beyond_the_number_share_one() -> None:
    messages = Messages(most_keys=3)
    assert messages.logged(*"abcdefg") == [True] * 5 + [False] * 2
    assert messages.logged("a") == [True]
    messages.now = 60.0
    assert messages.logged(*"defg") == [True] * 4


def test_a_key_is_forgotten_after_its_interval_however_few_there_are() -> None:
    """Names of objects that come once must not stay for a day."""
    messages, key = Messages(), Key("a Service")
    found = weakref.ref(key)
    messages.logged(key)
    del key
    messages.now = 59.0
    messages.logged("another")
    assert found() is not None
    messages.now = 60.0
    messages.logged("another")
    assert found() is None
