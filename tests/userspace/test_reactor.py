"""The carrier's event loop: iterations, time-outs and delayed closing."""

from __future__ import annotations

import select
import socket

from kubeproxy.modes.userspace.carrier.reactor import Reactor, Timeouts


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_handler_is_called_for_its_descriptor() -> None:
    reactor = Reactor(Clock())
    near, far = socket.socketpair()
    seen: list[int] = []
    reactor.register(near.fileno(), select.EPOLLIN, seen.append)
    far.send(b"x")
    reactor.run_once()
    assert seen == [select.EPOLLIN]
    for handle in (near, far):
        handle.close()
    reactor.close()


def test_a_socket_to_be_closed_gets_no_event_of_the_same_iteration_and_closes_after_it() -> None:
    """So its number cannot be given to a new socket while events for it are still to come."""
    reactor = Reactor(Clock())
    pairs = [socket.socketpair() for _ in range(2)]
    seen: list[int] = []

    def close_both(_mask: int) -> None:
        seen.append(1)
        for near, _ in pairs:
            reactor.close_later(near)
            assert near.fileno() >= 0

    for near, far in pairs:
        reactor.register(near.fileno(), select.EPOLLIN, close_both)
        far.send(b"x")
    reactor.run_once()
    assert seen == [1]
    assert all(near.fileno() == -1 for near, _ in pairs)
    for _, far in pairs:
        far.close()
    reactor.close()


def test_work_that_is_not_finished_runs_in_the_next_iteration_without_waiting() -> None:
    reactor = Reactor(Clock())
    done: list[str] = []

    def first() -> None:
        done.append("first")
        reactor.call_soon(lambda: done.append("second"))

    reactor.call_soon(first)
    reactor.run_once()
    assert done == ["first"]
    reactor.run_once()
    assert done == ["first", "second"]
    reactor.close()


def test_time_outs_fire_in_order_unless_cancelled() -> None:
    fired: list[str] = []
    timeouts = Timeouts(1.0)
    first = timeouts.start(0.0, lambda: fired.append("first"))
    timeouts.start(0.5, lambda: fired.append("second"))
    timeouts.start(9.0, lambda: fired.append("third"))
    assert timeouts.next_deadline() == 1.0
    first.cancel()
    assert timeouts.next_deadline() == 1.5
    timeouts.expire(2.0)
    assert fired == ["second"]
    assert timeouts.next_deadline() == 10.0


def test_an_iteration_fires_what_is_due() -> None:
    clock = Clock()
    reactor = Reactor(clock)
    timeouts = Timeouts(0.0)
    reactor.add_timers(timeouts)
    fired: list[float] = []
    timeouts.start(reactor.now, lambda: fired.append(reactor.now))
    reactor.run_once()
    assert fired == [100.0]
    reactor.close()
