"""What the listeners of one carrier have in common."""

from __future__ import annotations

import random
from collections.abc import Callable

from kubeproxy.modes.userspace.carrier.balance import Balancer
from kubeproxy.modes.userspace.carrier.budget import Budget, Complaints
from kubeproxy.modes.userspace.carrier.half import Pipes
from kubeproxy.modes.userspace.carrier.reactor import Reactor, Timeouts

DIAL_SECONDS = (0.25, 0.5, 1.0, 2.0)
"""How long each attempt to connect may take; there are as many attempts."""

PAUSE_SECONDS = 0.1
"""How long a listener waits that found no descriptor, before it looks again."""


class Shared:
    """The loop, its timers, descriptors and pipes; and counters for whoever asks."""

    def __init__(self, reactor: Reactor, *, limit: int, say: Callable[[str, str], None]) -> None:
        self.reactor = reactor
        self.budget = Budget(limit)
        self.complaints = Complaints(say)
        self.pipes = Pipes()
        self.dial_timeouts = tuple(Timeouts(seconds) for seconds in DIAL_SECONDS)
        self.pauses = Timeouts(PAUSE_SECONDS)
        self.connections = 0
        self.sessions = 0
        for timers in (*self.dial_timeouts, self.pauses):
            reactor.add_timers(timers)

    def complain(self, label: str, kind: str, detail: str) -> None:
        self.complaints.note(label, kind, detail, self.reactor.now)


def new_balancer() -> Balancer:
    return Balancer(random.shuffle)
