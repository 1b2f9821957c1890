"""Notices when another process changes our table.

The kernel notifies every subscriber of each change and names its author. It filters out our own
changes by the author's port id, so they neither wake us nor look like drift. Notifications of one
foreign transaction are gathered before they are reported, so that one `nft flush ruleset` is one
repair. The last message of a transaction has the process that committed it.

Of changed elements the notification has set and key, so these alone are reported, and reading them
takes microseconds. Whatever else changed, or if notifications were lost, the whole table must be
read. So a process that goes on changing it is answered more and more seldom (`Pauses`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

from msgspec import Struct, field

from kubeproxy.errors import KernelError
from kubeproxy.kernel.netlink.codec import Message
from kubeproxy.kernel.netlink.socket import NetlinkMonitor, Overrun
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import open_monitor
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import DriftListener, by_whom
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import ElementItem
from kubeproxy.modes.nftables.names import FamilyLayout

logger = get_logger(__name__)

_SETTLE_SECONDS = 0.05
_KINDS = {
    nft.DELTABLE: "table deleted",
    nft.NEWTABLE: "table added",
    nft.DELSET: "set deleted",
    nft.NEWSET: "set added",
    nft.DELCHAIN: "chain deleted",
    nft.NEWCHAIN: "chain added",
    nft.DELRULE: "rule deleted",
    nft.NEWRULE: "rule added",
    nft.DELSETELEM: "element deleted",
    nft.NEWSETELEM: "element added",
    nft.DELOBJ: "object deleted",
    nft.NEWOBJ: "object added",
    nft.DELFLOWTABLE: "flowtable deleted",
    nft.NEWFLOWTABLE: "flowtable added",
}
"""The most important first: a deleted table matters more than the rules that went with it."""

_RANKS = {kind: rank for rank, kind in enumerate(_KINDS)}

_ELEMENTS = frozenset((nft.NEWSETELEM, nft.DELSETELEM))

RankedText = tuple[int, str]
"""A description of a change, with its rank in a report."""

_LOST: RankedText = (-1, "some notifications were lost, so anything may have changed")


MOST_ELEMENTS = 10_000
"""Of how many elements the keys are kept. Beyond that the whole table is read."""

_QUIET_SECONDS = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
_DATAGRAMS_AT_ONCE = 256
"""What arrives after so many is reported separately, so that no flood keeps us from reporting."""


_FREE_REPAIRS = 10
"""How many repairs of single elements in a row follow at once: they cost little."""


class Pauses:
    """How long to wait before a report; `free` ones in a row need not wait. Time is an argument."""

    def __init__(self, free: int = 1) -> None:
        self._free = self._left = free
        self._pause = 0.0
        self._reported_at = float("-inf")

    def before_report(self, now: float) -> float:
        """Return the seconds to wait: none after a quiet time, else twice as long as before."""
        if now - self._reported_at > max(_QUIET_SECONDS, 2 * self._pause):
            self._pause, self._left = 0.0, self._free
        self._left -= 1
        if self._left < 0:
            self._pause = max(_FIRST_PAUSE_SECONDS, min(2 * self._pause, _LONGEST_PAUSE_SECONDS))
        self._reported_at = now + self._pause
        return self._pause


class Seen(Struct):
    """What arrived of foreign transactions: changes, their port ids, and processes by name."""

    changes: Counter[RankedText] = field(default_factory=Counter)
    elements: set[ElementItem] | None = field(default_factory=set)
    """The elements that changed, or None if it was more than elements."""
    authors: set[int] = field(default_factory=set)
    committers: dict[str, None] = field(default_factory=dict)

    def note(self, change: nft.Notification) -> None:
        """Count a change to our table."""
        self.changes[_ranked(change)] += 1
        if change.kind not in _ELEMENTS or self.elements is None:
            self.elements = None
            return
        self.elements.update(ElementItem(change.name, key) for key in change.keys)
        if len(self.elements) > MOST_ELEMENTS:
            self.elements = None

    def note_loss(self) -> None:
        """Count notifications that were lost: anything may have changed."""
        self.changes[_LOST] += 1
        self.elements = None


class DriftMonitor:
    """Changes that other processes make to one family's table."""

    def __init__(self, layout: FamilyLayout, author: int) -> None:
        self._family = layout.number
        self._family_byte = bytes((layout.number,))
        self._monitor: NetlinkMonitor = open_monitor(author)

    def close(self) -> None:
        self._monitor.close()

    async def run(self, drifted: DriftListener) -> None:
        """Report foreign changes to `drifted` until cancelled."""
        for_all, for_some = Pauses(), Pauses(_FREE_REPAIRS)
        loop = asyncio.get_running_loop()
        while True:
            seen = Seen()
            await self._gather(seen)
            if seen.changes:
                pauses = for_all if seen.elements is None else for_some
                if pause := pauses.before_report(loop.time()):
                    await asyncio.sleep(pause)
                    self._drain(seen)
                drifted(summary(seen.changes) + by_whom(seen.committers), seen.elements)

    async def _gather(self, seen: Seen) -> None:
        """Wait for a notification, and count what arrives until the table is quiet."""
        try:
            self._note(await self._monitor.receive(), seen)
        except Overrun:
            seen.note_loss()
        if seen.changes:
            await asyncio.sleep(_SETTLE_SECONDS)
        self._drain(seen)

    def _drain(self, seen: Seen) -> None:
        """Count what has arrived already."""
        try:
            for _ in range(_DATAGRAMS_AT_ONCE):
                messages = self._monitor.receive_now()
                if not messages:
                    return
                self._note(messages, seen)
        except Overrun:
            seen.note_loss()

    def _note(self, messages: list[Message], seen: Seen) -> None:
        for message in messages:
            # Changes by the other family's engine are not filtered out, and it may have rewritten
            # its whole table. Its messages are recognised by one byte, before anything is parsed.
            if message.body[:1] == self._family_byte:
                change = nft.parse_notification(message)
                if change and is_drift(change, self._family):
                    seen.note(change)
                    seen.authors.add(message.pid)
            elif message.type == nft.NEW_GENERATION and message.pid in seen.authors:
                seen.committers[nft.parse_committer(message)] = None


WATCH_RETRY_SECONDS = 5.0


async def watch_table(
    open_drift_monitor: Callable[[], DriftMonitor], drifted: DriftListener
) -> None:
    """Report foreign changes until cancelled. What ends a monitor does not end this."""
    is_blind = False
    while True:
        try:
            with contextlib.closing(open_drift_monitor()) as monitor:
                if is_blind:
                    is_blind = False
                    drifted("it was not watched for a while, so anything may have changed")
                await monitor.run(drifted)
        except (KernelError, OSError) as error:
            if not is_blind:
                logger.error(error, "Cannot watch the nftables table; trying again")
            is_blind = True
        await asyncio.sleep(WATCH_RETRY_SECONDS)


def is_drift(change: nft.Notification, family: int) -> bool:
    """Is it a change to our table, and not merely a client added to an affinity set?"""
    if change.family != family or change.table != names.TABLE_NAME:
        return False
    return not (change.kind in _ELEMENTS and names.is_affinity_set(change.name))


def _ranked(change: nft.Notification) -> RankedText:
    what = _KINDS[change.kind]
    name = nft.printable(change.name)
    return _RANKS[change.kind], f"{what} ({name})" if name else what


_MOST_SHOWN = 5


def summary(seen: Counter[RankedText]) -> str:
    """The most important changes, each with the number of its occurrences."""
    ordered = sorted(seen)
    shown = [
        text if seen[rank, text] == 1 else f"{seen[rank, text]} × {text}"
        for rank, text in ordered[:_MOST_SHOWN]
    ]
    more = len(ordered) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
