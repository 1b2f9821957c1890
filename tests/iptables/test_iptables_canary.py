"""The canary: what counts as a flush, and what does not."""

from __future__ import annotations

import pytest
from tests.support.engine_kit import RecordedDrifts

from kubeproxy.errors import Busy, KernelError, ToolMissing
from kubeproxy.modes.iptables.names import CANARY
from kubeproxy.modes.iptables.sinks.canary import TABLES, CanaryMonitor
from kubeproxy.modes.netfilter.rules.text import parse_save


class Stop(Exception):
    """Ends a monitor that would run for ever."""


class Chains:
    """Tables that hold the canary or not, and may be locked or broken."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.is_locked = False
        self.reason: KernelError = Busy("locked")
        self.failures = 0
        self.checks: list[str] = []

    async def restore(self, text: str) -> None:
        if self.failures:
            self.failures -= 1
            raise KernelError("no such table")
        self.held |= {table.name for table in parse_save(text) if CANARY in table.policies}

    async def has_chain(self, table: str, chain: str) -> bool:
        self.checks.append(table)
        if self.is_locked:
            raise self.reason
        return table in self.held


class World:
    """Time passes by sleeping; at given sleeps something happens."""

    def __init__(self, chains: Chains, events: list[str]) -> None:
        self.chains = chains
        self.events = events
        self.sleeps: list[float] = []
        self.drifts = RecordedDrifts()

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        event = self.events.pop(0) if self.events else "stop"
        if event == "stop":
            raise Stop
        if event == "flush":
            self.chains.held.clear()
        elif event.startswith("flush "):
            self.chains.held.discard(event.removeprefix("flush "))
        elif event == "lock":
            self.chains.is_locked = True
        elif event == "unlock":
            self.chains.is_locked = False

    async def run(self) -> None:
        with pytest.raises(Stop):
            await CanaryMonitor(self.chains, 30.0, self.sleep).run(self.drifts)


async def test_a_flush_is_reported_and_the_canary_set_again() -> None:
    """One report per flush, after the interval."""
    world = World(Chains(), ["", "flush", "", "flush"])
    await world.run()
    assert len(world.drifts) == 2
    assert "is gone from all tables" in world.drifts[0]
    assert world.chains.held == set(TABLES)
    assert world.sleeps == [30.0] * 5


async def test_the_flush_must_be_over_before_it_is_reported() -> None:
    """While other tables still have the canary, the flush is going on: wait in small steps."""
    world = World(Chains(), ["flush mangle", "", "flush nat", "flush filter"])
    await world.run()
    assert len(world.drifts) == 1
    assert world.sleeps == [30.0, 0.1, 0.1, 0.1, 30.0]


async def test_a_partial_flush_is_reported_after_five_seconds() -> None:
    """The chain is gone from one table only: inconsistent, but repaired all the same."""
    world = World(Chains(), ["flush mangle"] + [""] * 60)
    await world.run()
    assert "Inconsistent iptables state detected" in world.drifts[0]


async def test_a_held_lock_is_not_a_flush() -> None:
    """While the tables cannot be read, nothing is known about the chain."""
    world = World(Chains(), ["lock", "", "unlock", ""])
    await world.run()
    assert world.drifts == []


async def test_a_tool_that_is_missing_for_a_while_is_not_a_flush_nor_the_end() -> None:
    """As while the package is upgraded."""
    chains = Chains()
    chains.reason = ToolMissing('"iptables" is not installed or not in PATH')
    world = World(chains, ["lock", "", "unlock", "", "flush"])
    await world.run()
    assert len(world.drifts) == 1


async def test_setting_the_canary_is_retried() -> None:
    """A table that cannot be written now is tried again after the interval."""
    chains = Chains()
    chains.failures = 2
    world = World(chains, ["", "", ""])
    await world.run()
    assert chains.held == set(TABLES)
    assert world.drifts == []
