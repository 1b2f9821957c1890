"""When the rules of other modes go: after the first sync, again if necessary, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from msgspec.structs import replace
from tests.support.logged import Logging
from tests.support.waiting import until

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyMode, Retired, Running
from kubeproxy.modes.registry import load_mode
from kubeproxy.plan.conntrack import Socket
from kubeproxy.run.leftovers import LAST_PAUSE_SECONDS, PATIENCE_SECONDS, RETRY_SECONDS, Leftovers

RUNNING = Running("nftables", (), is_patient=True)
Retire = Callable[[Running], Awaitable[Retired]]


class Node:
    """What other modes have left, and what becomes of it with each attempt."""

    def __init__(self, outcomes: Mapping[str, list[Retired]] | None = None) -> None:
        self.traces = set(outcomes or {})
        self._outcomes = {mode: list(listed) for mode, listed in (outcomes or {}).items()}
        self.attempts: list[tuple[str, bool]] = []
        self.pauses: list[float] = []
        self.forgotten: list[tuple[Family, frozenset[Socket]]] = []
        self.doubts = 0
        self.failures = 0
        self.looks = 0
        self.comes_back = False

    def look(self, _: Running) -> frozenset[str]:
        self.looks += 1
        if self.failures:
            self.failures -= 1
            raise KernelError("nothing can be read")
        return frozenset(self.traces)

    def load(self, name: str) -> AnyMode:
        async def retire(running: Running) -> Retired:
            self.attempts.append((name, running.is_patient))
            listed = self._outcomes[name]  # the last one holds for ever
            outcome = listed.pop(0) if len(listed) > 1 else listed[0]
            if not (self.comes_back or outcome.problems or outcome.connections):
                self.traces.discard(name)
            return outcome

        return replace(load_mode(name), retire=retire)

    async def forget(self, family: Family, places: frozenset[Socket]) -> None:
        self.forgotten.append((family, places))

    def doubt(self) -> None:
        self.doubts += 1

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    def leftovers(self, **options: float) -> Leftovers:
        return Leftovers(
            RUNNING,
            forget_flows=self.forget,
            removed=self.doubt,
            look=self.look,
            load=self.load,
            sleep=self.sleep,
            **options,
        )

    async def run(self, pauses: int) -> None:
        """Let the first sync succeed, and go on until there were so many pauses."""
        leftovers = self.leftovers()
        leftovers.first_sync_done()
        task = asyncio.create_task(leftovers.run())
        await until(lambda: len(self.pauses) >= pauses or task.done())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_nothing_is_looked_at_before_the_first_sync(logging: Logging) -> None:
    """Starting costs nothing for it. A first sync that does not come is reported, once."""
    node = Node({"iptables": [Retired()]})
    leftovers = node.leftovers(notice_seconds=0.0)
    with logging() as log:
        task = asyncio.create_task(leftovers.run())
        await until(lambda: node.looks)
        for _ in range(10):
            await asyncio.sleep(0)
    assert not node.attempts
    (line,) = log.lines("Not synced yet", "stay and serve")
    assert 'modes=["iptables"]' in line
    leftovers.first_sync_done()
    await until(lambda: node.pauses)
    task.cancel()
    assert node.attempts == [("iptables", True)]


async def test_no_line_is_logged_where_no_other_mode_was() -> None:
    node = Node()
    task = asyncio.create_task(node.leftovers(notice_seconds=0.0).run())
    await until(lambda: node.looks)
    assert not node.pauses
    task.cancel()


async def test_every_mode_that_shows_is_removed_and_looked_for_again(logging: Logging) -> None:
    node = Node({"iptables": [Retired()], "userspace": [Retired()]})
    with logging() as log:
        await node.run(pauses=3)
    assert node.attempts == [("iptables", True), ("userspace", True)]
    assert len(log.lines("Removed what another mode had left")) == 2
    assert node.doubts == 1
    assert node.pauses[:3] == [RETRY_SECONDS, 2 * RETRY_SECONDS, 4 * RETRY_SECONDS]


async def test_looks_become_rare_but_do_not_end() -> None:
    node = Node()
    await node.run(pauses=20)
    assert node.pauses[-1] == LAST_PAUSE_SECONDS
    assert node.doubts == 0


async def test_what_could_not_be_removed_is_tried_again(logging: Logging) -> None:
    node = Node({"ipvs": [Retired(("locked",)), Retired()]})
    with logging() as log:
        await node.run(pauses=2)
    assert node.attempts == [("ipvs", True)] * 2
    (line,) = log.lines("Leftovers of another mode remain")
    assert 'err="locked"' in line and 'mode="ipvs"' in line


async def test_what_comes_back_is_reported(logging: Logging) -> None:
    """Another proxy of that mode still runs; the removal was none."""
    node = Node({"iptables": [Retired()]})
    node.comes_back = True
    with logging() as log:
        await node.run(pauses=2)
    assert log.lines("Leftovers of another mode remain", "there again, or still")
    assert not log.lines("Removed")


async def test_a_node_that_cannot_be_read_is_read_again() -> None:
    node = Node({"iptables": [Retired()]})
    node.failures = 2
    await node.run(pauses=3)
    assert node.attempts == [("iptables", True)]


async def test_open_connections_are_waited_for_but_not_for_ever(logging: Logging) -> None:
    """Meanwhile there is no doubt about other flows, and UDP flows are forgotten at once."""
    flows = {Family.IPV4: frozenset({b"x"})}
    rounds = int(PATIENCE_SECONDS / RETRY_SECONDS)
    waiting = [Retired(connections=2, untranslated=flows)] + [Retired(connections=2)] * (rounds - 1)
    node = Node({"ipvs": [*waiting, Retired()]})
    with logging() as log:
        await node.run(pauses=rounds + 1)
    assert node.attempts[-1] == ("ipvs", False)
    assert {patient for _, patient in node.attempts[:-1]} == {True}
    assert set(node.pauses[:rounds]) == {RETRY_SECONDS}
    assert node.forgotten == [(Family.IPV4, flows[Family.IPV4])]
    assert node.doubts == 1
    assert log.lines("it goes on for its open connections", "connections=2")
    assert not log.lines("remain")
