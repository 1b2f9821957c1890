"""Run iptables, iptables-save and iptables-restore of one family.

Why: every call takes the same care about versions, locks and errors. Promise: calls of one family
never overlap; a wait for the xtables lock ends, with an error that names its holder; the error of
a refused restore has the number of the refused input line. Leaves to others: what to restore.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from kubeproxy.errors import Busy, KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.exec import Completed, run_tool
from kubeproxy.kernel.xtables_lock import held_lock, lock_holder
from kubeproxy.logs import get_logger
from kubeproxy.modes.netfilter.compile.refusals import RestoreRefused
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.rules.text import error_summary, failed_line
from kubeproxy.modes.netfilter.sinks.chains import find_chains, is_empty_legacy
from kubeproxy.modes.netfilter.sinks.tools import (
    Programs,
    Version,
    command_wait_flags,
    programs,
    restore_wait_flags,
)
from kubeproxy.modes.netfilter.sinks.versions import version_of
from kubeproxy.modes.netfilter.sinks.watchers import TableWatcher

logger = get_logger(__name__)

_SLOW_SECONDS = 2.0
_RESOURCE_PROBLEM = 4
"""The exit status of a tool that could not get the lock, among other things (RESOURCE_PROBLEM)."""
_LOCK_WORDS = ("xtables lock", "Resource temporarily unavailable")


class Tables(Protocol):
    """What the sink needs of iptables; a fake in tests interprets the same text."""

    @property
    def is_nft(self) -> bool: ...

    async def is_empty(self, table: str) -> bool: ...

    async def save(self, table: str) -> str: ...

    async def restore(self, text: str) -> None: ...


class _Probed(Struct, frozen=True):
    """What a probe found out: the version, and the options to wait for the lock."""

    version: Version
    command_flags: tuple[str, ...]
    restore_flags: tuple[str, ...]


class Xtables:
    """The iptables programs of one family on this host."""

    def __init__(self, family: Family, options: ToolOptions) -> None:
        self.family = family
        self._programs: Programs = programs(family, options.variant)
        self._lock_timeout_seconds = options.lock_timeout_seconds
        self.watcher: TableWatcher | None = None
        """Is given the beginning and end of our own writes, to know them from those of others."""
        self._probed: _Probed | None = None
        self._turn = asyncio.Lock()

    @property
    def version(self) -> Version:
        """The version as probed; before that one which understands no option."""
        return self._probed.version if self._probed else Version()

    @property
    def is_nft(self) -> bool:
        return self.version.is_nft

    async def probe(self) -> Version:
        """Find out the version, once, and which options it allows."""
        return (await self._probe()).version

    async def _probe(self) -> _Probed:
        if self._probed is None:
            version = await version_of(self._programs.command)
            understands_version = (
                version.restore_waits or await version_of(self._programs.restore) != Version()
            )
            # Everything at once: a concurrent first call must not run with half of the options.
            self._probed = _Probed(
                version,
                command_wait_flags(version, self._lock_timeout_seconds),
                restore_wait_flags(
                    version, self._lock_timeout_seconds, understands_version=understands_version
                ),
            )
        return self._probed

    async def is_empty(self, table: str) -> bool:
        """Is it known, without a tool, that a table has neither rules nor chains of anyone?"""
        return not (await self.probe()).is_nft and is_empty_legacy(self.family, table)

    async def save(self, table: str, *, with_counters: bool = False) -> str:
        """The table as text; a table that does not exist yet is empty."""
        argv = [self._programs.save, "-t", table, *(["-c"] if with_counters else [])]
        async with self._turn:
            done = await _timed(argv)
        if not done.is_success:
            raise self._failure(done)
        return done.stdout

    async def restore(self, text: str) -> None:
        """Apply restore input; chains it does not declare stay as they are."""
        flags = (await self._probe()).restore_flags
        argv = [self._programs.restore, *flags, "--noflush", "--counters"]
        async with self._turn:
            # iptables-nft commits to the kernel at once and needs no lock. An old legacy restore
            # that has no option to wait takes no lock either, so we hold it around the call.
            if flags or self.is_nft:
                done = await self._write(argv, text)
            else:
                async with held_lock():
                    done = await self._write(argv, text)
        if not done.is_success:
            raise self._failure(done)

    async def rehearse(self, text: str) -> str:
        """Read restore input without applying it. Return what the tool has to say about it.

        It asks the kernel for every match and target, and warns of those that are not there.
        Raises KernelError if the input as a whole is refused.
        """
        flags = (await self._probe()).restore_flags
        async with self._turn:
            done = await _timed([self._programs.restore, *flags, "--test", "--noflush"], text)
        if not done.is_success:
            raise self._failure(done)
        return done.output

    async def _write(self, argv: Sequence[str], text: str = "") -> Completed:
        """Run a tool that changes tables.

        A watcher that comes meanwhile is given the end of the write, or else would report it.
        """
        succeeded = False
        if self.watcher is not None:
            self.watcher.begin()
        try:
            done = await _timed(argv, text)
            succeeded = done.is_success
        finally:
            if self.watcher is not None:
                self.watcher.end(succeeded=succeeded)
        return done

    async def command(self, *args: str) -> Completed:
        """Run one `iptables` command that changes nothing, whatever its status.

        Raises Busy if the lock is held.
        """
        flags = (await self._probe()).command_flags
        async with self._turn:
            done = await _timed([self._programs.command, *flags, *args])
        return self._unless_locked_out(done)

    async def has_chain(self, table: str, chain: str) -> bool:
        """Is there such a chain, beside the built-in ones? No tool is run but to probe."""
        is_nft = (await self.probe()).is_nft
        return bool(find_chains(self.family, table, [chain], is_nft=is_nft))

    async def require_chain(self, table: str, chain: str) -> None:
        """Raise KernelError with the tool's own message if the chain cannot be listed."""
        done = await self.command("-S", chain, "-t", table)
        if not done.is_success:
            raise KernelError(
                f'error listing chain "{chain}" in table "{table}": {self._failure(done)}'
            )

    async def is_present(self) -> bool:
        """Can this family be programmed here at all?"""
        try:
            await self.require_chain("nat", "POSTROUTING")
        except Busy:
            return True  # a lock is held for it; what comes next fails with that reason
        except KernelError:
            return False
        return True

    def _unless_locked_out(self, done: Completed) -> Completed:
        if _is_lock_timeout(done):
            raise self._failure(done)
        return done

    def _failure(self, done: Completed) -> KernelError:
        if _is_lock_timeout(done):
            holder = lock_holder() or "an unknown process (it let go meanwhile)"
            return Busy(
                f"{done.argv[0]} waited {self._lock_timeout_seconds:g} s for the xtables lock, "
                f"held by {holder}; a longer --xtables-lock-timeout waits longer"
            )
        reason = error_summary(done.output) or "it said nothing"
        message = f"{done.argv[0]} ended with status {done.status}: {reason}"
        if done.argv[0] == self._programs.restore:
            return RestoreRefused(message, line=failed_line(done.output))
        return KernelError(message)


async def _timed(argv: Sequence[str], text: str = "") -> Completed:
    """Run a tool, and log if it took long, often the first sign of a table grown too big."""
    started = time.monotonic()
    done = await run_tool(argv, stdin=text.encode())
    seconds = time.monotonic() - started
    if seconds > _SLOW_SECONDS:
        logger.info("Slow iptables call", command=" ".join(argv), seconds=round(seconds, 3))
    return done


def _is_lock_timeout(done: Completed) -> bool:
    return done.status == _RESOURCE_PROBLEM and any(words in done.output for words in _LOCK_WORDS)
