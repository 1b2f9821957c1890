"""Steady traffic along one route of a lab, and a count of where it went."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import msgspec

from kpctl.lab.probe import Prober, Target

_PAUSE_SECONDS = 0.008
_TIMEOUT_SECONDS = 60.0
"""As of a load: that an answer is late says something about a busy machine, not about the proxy."""


class Sample(msgspec.Struct, frozen=True):
    """One connection: when it was begun, and the host that answered or how it failed."""

    at: float
    host: str
    failure: str = ""


class Route(msgspec.Struct, frozen=True):
    """A kind of traffic: its label, and where it goes."""

    label: str
    target: Target


class Traffic:
    """New connections along one route, one after the other, until stopped."""

    def __init__(self, prober: Prober, route: Route) -> None:
        self.route = route
        self.samples: list[Sample] = []
        self._prober = prober
        self._is_over = False
        self._task = asyncio.create_task(self._run())

    def counts(self, *, since: float = 0.0) -> Counter[str]:
        """Answers by host, of connections begun since a time."""
        return Counter(s.host for s in self.samples if s.at >= since and s.host)

    def failures(self, *, since: float = 0.0, until: float = float("inf")) -> int:
        """Connections that failed, of those begun between two times."""
        return sum(1 for s in self.samples if since <= s.at < until and s.failure)

    async def stop(self) -> None:
        self._is_over = True
        await self._task

    async def _run(self) -> None:
        while not self._is_over:
            at = time.time()
            outcome = await self._prober.probe(self.route.target, timeout_seconds=_TIMEOUT_SECONDS)
            if outcome.answer is not None:
                self.samples.append(Sample(at, outcome.answer.host))
            else:
                self.samples.append(Sample(at, "", outcome.fate.value))
            await asyncio.sleep(_PAUSE_SECONDS)
