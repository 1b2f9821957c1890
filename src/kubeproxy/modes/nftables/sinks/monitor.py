"""Notices when another process changes our table.

The kernel notifies every subscriber of each change and names its author. It filters out our own
changes by the author's port id, so they neither wake us nor look like drift. Notifications of one
foreign transaction are gathered before they are reported, so that one `nft flush ruleset` is one
repair.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from kubeproxy.kernel.netlink.codec import Message
from kubeproxy.kernel.netlink.socket import NetlinkMonitor, Overrun
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import open_monitor
from kubeproxy.modes.base import DriftListener
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.names import FamilyLayout

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
}
"""The most important first: a deleted table matters more than the rules that went with it."""

_RANKS = {kind: rank for rank, kind in enumerate(_KINDS)}

RankedText = tuple[int, str]
"""A description of a change, with its rank in a report."""


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
        while True:
            seen: Counter[RankedText] = Counter()
            await self._gather(seen)
            if seen:
                drifted(summary(seen))

    async def _gather(self, seen: Counter[RankedText]) -> None:
        """Wait for a notification, and count what arrives until the table is quiet."""
        try:
            seen.update(self._foreign(await self._monitor.receive()))
            if seen:
                await asyncio.sleep(_SETTLE_SECONDS)
            while messages := self._monitor.receive_now():
                seen.update(self._foreign(messages))
        except Overrun:
            seen[(-1, "some news was lost, so anything may have changed")] += 1

    def _foreign(self, messages: list[Message]) -> list[RankedText]:
        # Changes by the other family's engine are not filtered out, and it may have rewritten
        # its whole table. Its messages are recognised by one byte, before anything is parsed.
        of_family = (message for message in messages if message.body[:1] == self._family_byte)
        found = map(nft.parse_notification, of_family)
        return [_ranked(change) for change in found if change and is_drift(change, self._family)]


def is_drift(change: nft.Notification, family: int) -> bool:
    """Is it a change to our table, and not merely a client added to an affinity set?"""
    if change.family != family or change.table != names.TABLE_NAME:
        return False
    is_element = change.kind in (nft.NEWSETELEM, nft.DELSETELEM)
    return not (is_element and names.is_affinity_set(change.name))


def _ranked(change: nft.Notification) -> RankedText:
    what = _KINDS[change.kind]
    return _RANKS[change.kind], f"{what} ({change.name})" if change.name else what


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
