"""Connections that stay open over several steps of a flow, and what becomes of them.

    goes on                   the host that answered first still answers
    is reset                  asking again ends with a reset, now or soon
    is closed                 its owner notices without asking
    moves to B or C           another host answers now (UDP has no connection that could be reset)
    is closed or moves to B   it depends on the kernel

A reset is not silence: a connection that times out is reported as what it is.
"""

from __future__ import annotations

import asyncio
import re
import time

import msgspec

from kpctl.lab.pace import scaled
from kpctl.lab.probe import Connection, Fate, Outcome, Prober, Target
from kubeproxy.errors import ConfigError

_ANSWER_SECONDS = 60.0
_PATIENCE_SECONDS = 3 * _ANSWER_SECONDS
_PAUSE_SECONDS = 0.1
_GOES_ON, _RESET, _CLOSED, _MOVING = "goes on", "is reset", "is closed", "moves"
_MOVES = re.compile(r"(?P<may_close>is closed or )?moves to (?P<hosts>[\w-]+(?: or [\w-]+)*)")
_NO_PEER = "Destination address required"
"""What sending on a socket of UDP says once the kernel has closed it."""
_RESETS = ("Connection reset by peer", "Software caused connection abort", "Broken pipe")


class Becomes(msgspec.Struct, frozen=True):
    """What must become of a lasting connection; `hosts` are those that it moves to."""

    what: str
    hosts: tuple[str, ...] = ()
    may_close: bool = False
    """Is it right, too, that the socket was closed? That depends on the kernel."""


def parse_becomes(text: str) -> Becomes:
    """Parse `goes on`, `is reset`, `is closed` or `[is closed or ]moves to HOST or HOST`."""
    if text in (_GOES_ON, _RESET, _CLOSED):
        return Becomes(text)
    found = _MOVES.fullmatch(text)
    if found is None:
        known = f"{_GOES_ON}, {_RESET}, {_CLOSED}, moves to HOST"
        raise ConfigError(f"{text!r} is none of: {known}")
    hosts = tuple(found["hosts"].split(" or "))
    return Becomes(_MOVING, hosts, may_close=bool(found["may_close"]))


class Lasting:
    """One open connection and the host that answered first."""

    def __init__(self, connection: Connection, host: str) -> None:
        self._connection = connection
        self._host = host

    @staticmethod
    async def open(prober: Prober, target: Target) -> Lasting | str:
        """Open it and ask once. Return what is wrong if that fails."""
        opened = await prober.connect(target, timeout_seconds=scaled(_ANSWER_SECONDS))
        if isinstance(opened, Outcome):
            return f"cannot be opened: {opened.fate.value}, {opened.cause}"
        outcome = await opened.ask(timeout_seconds=scaled(_ANSWER_SECONDS))
        if outcome.answer is None:
            opened.close()
            return f"gets no answer: {outcome.cause}"
        return Lasting(opened, outcome.answer.host)

    async def check(self, wanted: Becomes) -> str:
        """Return what is wrong; empty if it is as wanted, now or (where it changes) soon."""
        if wanted.what == _CLOSED:
            cause = await self._connection.wait_for_end(timeout_seconds=scaled(_PATIENCE_SECONDS))
            return "" if cause in _RESETS else f"must be closed, is not: {cause}"
        deadline = time.monotonic() + scaled(_PATIENCE_SECONDS)
        while True:
            outcome = await self._connection.ask(timeout_seconds=scaled(_ANSWER_SECONDS))
            wrong = self._compare(outcome, wanted)
            # An error ends a connection, but not a socket of UDP: the flow has not moved yet.
            is_changing = wanted.what == _MOVING or (
                wanted.what != _GOES_ON and outcome.fate is Fate.ANSWERED
            )
            if not wrong or not is_changing or time.monotonic() > deadline:
                return wrong
            await asyncio.sleep(_PAUSE_SECONDS)

    def _compare(self, outcome: Outcome, wanted: Becomes) -> str:
        found = outcome.answer.host if outcome.answer else outcome.cause
        if wanted.what == _GOES_ON:
            return "" if found == self._host else f"must go on to {self._host}: {found}"
        if wanted.what == _RESET:
            return "" if outcome.cause in _RESETS else f"must be reset: {found}"
        if wanted.may_close and outcome.cause in (*_RESETS, _NO_PEER):
            return ""
        return "" if found in wanted.hosts else f"must move to {' or '.join(wanted.hosts)}: {found}"

    def close(self) -> None:
        self._connection.close()
