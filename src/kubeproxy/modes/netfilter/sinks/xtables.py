"""Running iptables, iptables-save and iptables-restore of one family.

Promise: calls of one family never overlap; waiting for the xtables lock ends, and then says who
holds it; a refused restore says which input line was refused. Leaves to others: what to restore.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from kubeproxy.errors import Busy, KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.exec import Completed, run_tool
from kubeproxy.kernel.xtables_lock import held_lock, lock_holder
from kubeproxy.logs import get_logger
from kubeproxy.modes.netfilter.compile.refusals import RestoreRefused
from kubeproxy.modes.netfilter.rules import text as texts
from kubeproxy.modes.netfilter.sinks.tools import (
    Programs,
    Version,
    command_wait_flags,
    parse_version,
    programs,
    restore_wait_flags,
)

logger = get_logger(__name__)

_SLOW_SECONDS = 2.0
_LOCK_WORDS = ("xtables lock", "Resource temporarily unavailable")
_NOT_FOUND_WORDS = (
    "No chain/target/match by that name",
    "No such file or directory",
    "does a matching rule exist",
    "does not exist",
)


class Tables(Protocol):
    """What the sink needs of iptables; a fake in tests interprets the same text."""

    @property
    def is_nft(self) -> bool: ...

    async def save(self, table: str) -> str: ...

    async def restore(self, text: str) -> None: ...


class Xtables:
    """The iptables programs of one family on this host."""

    def __init__(
        self, family: Family, *, variant: str = "", lock_timeout_seconds: float = 5.0
    ) -> None:
        self.family = family
        self._programs: Programs = programs(family, variant)
        self._lock_timeout_seconds = lock_timeout_seconds
        self._version: Version | None = None
        self._command_flags: tuple[str, ...] = ()
        self._restore_flags: tuple[str, ...] = ()
        self._turn = asyncio.Lock()

    @property
    def version(self) -> Version:
        """As probed; what an unprobed tool can do is not assumed."""
        return self._version or Version()

    @property
    def is_nft(self) -> bool:
        return self.version.is_nft

    async def probe(self) -> Version:
        """Find out the version, once, and which options it allows."""
        if self._version is None:
            said = await run_tool([self._programs.command, "--version"])
            self._version = parse_version(said.output) if said.is_success else Version()
            self._command_flags = command_wait_flags(self._version, self._lock_timeout_seconds)
            self._restore_flags = restore_wait_flags(
                self._version,
                self._lock_timeout_seconds,
                understands_version=await self._restore_understands_version(),
            )
        return self._version

    async def _restore_understands_version(self) -> bool:
        said = await run_tool([self._programs.restore, "--version"])
        return said.is_success and parse_version(said.output) != Version()

    async def save(self, table: str) -> str:
        """The table as text; a table that does not exist yet is empty."""
        await self.probe()
        argv = [self._programs.save, "-t", table]
        async with self._turn:
            done = await _timed(argv)
        if not done.is_success:
            raise self._failure(done)
        return done.stdout

    async def restore(self, text: str) -> None:
        """Apply restore input; chains it does not declare stay as they are."""
        await self.probe()
        argv = [self._programs.restore, *self._restore_flags, "--noflush", "--counters"]
        async with self._turn:
            if self._restore_flags or self.is_nft:
                done = await _timed(argv, text)
            else:
                async with held_lock():
                    done = await _timed(argv, text)
        if not done.is_success:
            raise self._failure(done)

    async def command(self, *args: str) -> Completed:
        """One `iptables` command; its status is the caller's to read."""
        await self.probe()
        async with self._turn:
            done = await _timed([self._programs.command, *self._command_flags, *args])
        if _says_locked(done):
            raise self._failure(done)
        return done

    async def ensure_chain(self, table: str, chain: str) -> None:
        """Create the chain unless it exists."""
        done = await self.command("-N", chain, "-t", table)
        if done.status > 1:
            raise self._failure(done)

    async def has_chain(self, table: str, chain: str) -> bool:
        done = await self.command("-S", chain, "-t", table)
        return done.is_success

    async def require_chain(self, table: str, chain: str) -> None:
        """Raise what the tool says if the chain cannot be listed."""
        done = await self.command("-S", chain, "-t", table)
        if not done.is_success:
            raise KernelError(
                f'error listing chain "{chain}" in table "{table}": {self._failure(done)}'
            )

    async def delete_chain(self, table: str, chain: str) -> None:
        """Empty and remove a chain; one that is not there is fine."""
        for operation in ("-F", "-X"):
            done = await self.command(operation, chain, "-t", table)
            if not done.is_success and not is_not_found(done.output):
                raise self._failure(done)

    async def delete_rule(self, table: str, chain: str, rule: Sequence[str]) -> None:
        """Remove a rule if it is there."""
        done = await self.command("-C", chain, "-t", table, *rule)
        if done.is_success:
            done = await self.command("-D", chain, "-t", table, *rule)
        if done.status > 1 and not is_not_found(done.output):
            raise self._failure(done)

    async def is_present(self) -> bool:
        """Can this family be programmed here at all?"""
        try:
            return await self.has_chain("nat", "POSTROUTING")
        except KernelError:
            return False

    def _failure(self, done: Completed) -> KernelError:
        if _says_locked(done):
            holder = lock_holder() or "an unknown process (it let go meanwhile)"
            return Busy(
                f"{done.argv[0]} waited {self._lock_timeout_seconds:g} s for the xtables lock, "
                f"held by {holder}; a longer --xtables-lock-timeout waits longer"
            )
        said = texts.complaint(done.output) or "it said nothing"
        message = f"{done.argv[0]} ended with status {done.status}: {said}"
        if done.argv[0] == self._programs.restore:
            return RestoreRefused(message, line=texts.failed_line(done.output))
        return KernelError(message)


async def _timed(argv: Sequence[str], text: str = "") -> Completed:
    """Run a tool, and say so if it took long: often the first sign of a table grown too big."""
    started = time.monotonic()
    done = await run_tool(argv, stdin=text.encode())
    seconds = time.monotonic() - started
    if seconds > _SLOW_SECONDS:
        logger.info("Slow iptables call", command=" ".join(argv), seconds=round(seconds, 3))
    return done


def _says_locked(done: Completed) -> bool:
    return done.status == 4 and any(words in done.output for words in _LOCK_WORDS)


def is_not_found(output: str) -> bool:
    """Does a tool say that what it should remove is not there?"""
    return any(words in output for words in _NOT_FOUND_WORDS)
