"""Notices when another process changes our table.

The kernel notifies every subscriber of each change and names its author. It filters out our own
changes by their authors' port ids, those of the other family included, so they neither wake us nor
look like drift. Notifications of one foreign transaction are gathered before they are reported, so
that one `nft flush ruleset` is one repair. The last message of a transaction has the process that
committed it.

Of changed elements the notification has set and key, so these alone are reported, and reading them
takes microseconds. Whatever else changed, or if notifications were lost, the whole table must be
read. So a process that goes on changing it is answered more and more seldom (`Pauses`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable

from msgspec import Struct, field

from kubeproxy.errors import KernelError
from kubeproxy.kernel.netlink.codec import Message
from kubeproxy.kernel.netlink.socket import NetlinkMonitor, Overrun
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import open_monitor, own_ports
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


_QUIET_SECONDS = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
_DATAGRAMS_AT_ONCE = 4096
"""More than fit the receive buffer, so that all that waits of one transaction is one report. What
arrives after so many is reported separately, so that no flood keeps us from reporting."""

MOST_PARSED = 10_000
"""Of so many changes of one kind names and keys are of interest. Others are only counted, and the
whole table is read."""


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
    kinds: Counter[int] = field(default_factory=Counter)
    """Messages about our table by type."""
    last_at: float = 0.0
    """When the last change was noticed."""

    def note(self, change: nft.Notification) -> None:
        """Count a change to our table."""
        self.changes[_ranked(change)] += 1
        if change.kind not in _ELEMENTS or self.elements is None:
            self.elements = None
            return
        self.elements.update(ElementItem(change.name, key) for key in change.keys)

    def note_unseen(self, kind: int) -> None:
        """Count a change to our table that is not looked at."""
        self.changes[_RANKS[kind], _KINDS[kind]] += 1
        self.elements = None

    def note_loss(self) -> None:
        """Count notifications that were lost: anything may have changed."""
        self.changes[_LOST] += 1
        self.elements = None
        self.last_at = time.monotonic()


class DriftMonitor:
    """Changes that other processes make to one family's table."""

    def __init__(self, layout: FamilyLayout) -> None:
        self._family = layout.number
        self._family_byte = bytes((layout.number,))
        self._monitor: NetlinkMonitor = open_monitor()
        self.received = 0
        """How many messages the kernel has not withheld."""

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
                what = summary(seen.changes) + by_whom(seen.committers)
                drifted(what, seen.elements, seen.last_at)

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
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                messages = self._monitor.receive_now()
            except Overrun:
                seen.note_loss()
                continue
            if not messages:
                return
            self._note(messages, seen)

    def _note(self, messages: list[Message], seen: Seen) -> None:
        """Count the messages of one datagram, which are of one transaction."""
        self.received += len(messages)
        seen.last_at = time.monotonic()
        if messages and messages[0].pid in (ours := own_ports()):
            # The other family's socket was opened after this monitor.
            self._monitor.skip_authors(ours)
            return
        for message in messages:
            if message.body[:1] == self._family_byte:
                self._note_change(message, seen)
            elif message.type == nft.NEW_GENERATION and message.pid in seen.authors:
                seen.committers[nft.parse_committer(message)] = None

    def _note_change(self, message: Message, seen: Seen) -> None:
        if nft.is_of_other_table(message, names.TABLE_NAME):
            return
        seen.kinds[message.type] += 1
        if seen.kinds[message.type] > MOST_PARSED and message.pid in seen.authors:
            seen.note_unseen(message.type & 0xFF)
            return
        change = nft.parse_notification(message)
        if change and is_drift(change, self._family):
            seen.note(change)
            seen.authors.add(message.pid)


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
