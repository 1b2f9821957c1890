"""Steady load: new connections all the time and one that stays open, with a list of failures."""

from __future__ import annotations

import asyncio
from datetime import datetime

from kpctl.lab.pace import scaled
from kpctl.lab.probe import Connection, Fate, Outcome, Prober, Target

_PAUSE_SECONDS = 0.01
_ENOUGH = 30
TIMEOUT_SECONDS = 60.0
"""Enough for a busy machine: an answer ends the wait. One that comes later counts as dropped."""


class Load:
    """A load that runs until stopped. `failures` and `hosts` hold what happened."""

    def __init__(
        self, prober: Prober, target: Target, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._prober = prober
        self._target = target
        self.label = f"{target.source} -> {target.address}:{target.port}"
        self._timeout_seconds = scaled(timeout_seconds)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False
        self.made = 0
        self.hosts: set[str] = set()
        self.failures: list[str] = []

    async def start(self) -> None:
        """Open the connection that stays open, and start to make others."""
        opened = await self._prober.connect(self._target, timeout_seconds=self._timeout_seconds)
        if isinstance(opened, Outcome):
            self.failures.append(f"the lasting connection was {opened.fate.value}")
            return
        self._tasks = [
            asyncio.create_task(self._keep_asking(opened)),
            asyncio.create_task(self._keep_connecting()),
        ]

    async def go_on(self) -> None:
        """Wait for so many new connections that each endpoint gets some."""
        wanted = self.made + _ENOUGH
        while self.made < wanted and self._tasks and not self.failures:
            await asyncio.sleep(_PAUSE_SECONDS)

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _keep_asking(self, connection: Connection) -> None:
        try:
            while not self._is_over:
                outcome = await connection.ask(timeout_seconds=self._timeout_seconds)
                if outcome.fate is not Fate.ANSWERED:
                    self.failures.append(f"the lasting connection was {outcome.fate.value}")
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            connection.close()

    async def _keep_connecting(self) -> None:
        while not self._is_over:
            began = datetime.now()
            outcome = await self._prober.probe(self._target, timeout_seconds=self._timeout_seconds)
            self.made += 1
            if outcome.answer is not None:
                self.hosts.add(outcome.answer.host)
            else:
                self.failures.append(f"connection {self.made} {_account(outcome, began)}")
            await asyncio.sleep(_PAUSE_SECONDS)


def _account(outcome: Outcome, began: datetime) -> str:
    """A failure as text. How long it took tells a lost packet from a wrong answer."""
    seconds = (datetime.now() - began).total_seconds()
    cause = f": {outcome.cause}" if outcome.cause else ""
    return f"at {began.time()} was {outcome.fate.value} after {seconds:.2f} s{cause}"
