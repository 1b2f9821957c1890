"""What the listeners of one carrier share."""

from __future__ import annotations

import random
from collections.abc import Callable

from kubeproxy.modes.userspace.carrier.balance import Balancer
from kubeproxy.modes.userspace.carrier.budget import Budget
from kubeproxy.modes.userspace.carrier.direction import PipePool
from kubeproxy.modes.userspace.carrier.reactor import Reactor, Timeouts
from kubeproxy.modes.userspace.carrier.service_log import ServiceLog

DIAL_SECONDS = (0.25, 0.5, 1.0, 2.0)
"""How long each attempt to connect may take; there are as many attempts. As in v1.25."""

PAUSE_SECONDS = 0.1
"""How long a listener that found no free descriptor waits before it accepts again."""


class Shared:
    """The event loop, its timers, descriptors, pipes and log; and counters of connections."""

    def __init__(self, reactor: Reactor, *, limit: int, write: Callable[[str, str], None]) -> None:
        self.reactor = reactor
        self.budget = Budget(limit)
        self.service_log = ServiceLog(write)
        self.pipes = PipePool()
        self.dial_timeouts = tuple(Timeouts(seconds) for seconds in DIAL_SECONDS)
        self.pauses = Timeouts(PAUSE_SECONDS)
        self.connections = 0
        self.sessions = 0
        for timers in (*self.dial_timeouts, self.pauses):
            reactor.add_timers(timers)

    def log(self, service: str, kind: str, detail: str) -> None:
        self.service_log.log(service, kind, detail, self.reactor.now)


def new_balancer() -> Balancer:
    return Balancer(random.shuffle)
