"""Notices when somebody else changes our table.

The kernel tells every listener what changed and who did it. Our own changes are filtered out in
the kernel by the author's port id, so they neither wake us nor look like drift. News about one
foreign transaction is gathered before it is told, so one `nft flush ruleset` is one repair.
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
"""What is told first comes first: a deleted table says more than the rules that went with it."""


Sentence = tuple[int, str]


class DriftMonitor:
    """Foreign changes to one family's table, as sentences."""

    def __init__(self, layout: FamilyLayout, author: int) -> None:
        self._family = layout.number
        self._family_byte = bytes((layout.number,))
        self._monitor: NetlinkMonitor = open_monitor(author)

    def close(self) -> None:
        self._monitor.close()

    async def run(self, drifted: DriftListener) -> None:
        """Tell about foreign changes until cancelled."""
        while True:
            seen: Counter[Sentence] = Counter()
            await self._gather(seen)
            if seen:
                drifted(summary(seen))

    async def _gather(self, seen: Counter[Sentence]) -> None:
        try:
            seen.update(self._relevant(await self._monitor.receive()))
            if seen:
                await asyncio.sleep(_SETTLE_SECONDS)
            while messages := self._monitor.receive_now():
                seen.update(self._relevant(messages))
        except Overrun:
            seen[(-1, "some news was lost, so anything may have changed")] += 1

    def _relevant(self, messages: list[Message]) -> list[Sentence]:
        # The other family's engine is not filtered out, and it may have written everything anew.
        of_family = (message for message in messages if message.body[:1] == self._family_byte)
        found = map(nft.parse_news, of_family)
        return [_sentence(news) for news in found if news and is_drift(news, self._family)]


def is_drift(news: nft.News, family: int) -> bool:
    """Is it our table, and not merely a client remembered by an affinity set?"""
    if news.family != family or news.table != names.TABLE_NAME:
        return False
    is_element = news.kind in (nft.NEWSETELEM, nft.DELSETELEM)
    return not (is_element and news.name.startswith(names.AFFINITY_PREFIX))


_ORDER = {kind: place for place, kind in enumerate(_KINDS)}


def _sentence(news: nft.News) -> Sentence:
    what = _KINDS[news.kind]
    return _ORDER[news.kind], f"{what} ({news.name})" if news.name else what


_TELL_AT_MOST = 5


def summary(seen: Counter[Sentence]) -> str:
    """The weightiest changes, with how often."""
    ordered = sorted(seen)
    told = [
        sentence if seen[place, sentence] == 1 else f"{seen[place, sentence]} × {sentence}"
        for place, sentence in ordered[:_TELL_AT_MOST]
    ]
    more = len(ordered) - len(told)
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")
