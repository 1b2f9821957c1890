"""Notices when somebody else changes our table.

The kernel tells every listener what changed and who did it. Our own changes are filtered out in
the kernel by the author's port id, so they neither wake us nor look like drift. News about one
foreign transaction is gathered before it is told, so one `nft flush ruleset` is one repair.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from kubeproxy.backends.base import DriftListener
from kubeproxy.backends.nftables import names
from kubeproxy.backends.nftables.names import FamilyLayout
from kubeproxy.kernel.netlink import nft
from kubeproxy.kernel.netlink.codec import Message
from kubeproxy.kernel.netlink.socket import NetlinkMonitor, Overrun

_SETTLE_SECONDS = 0.05
_KINDS = {
    nft.NEWTABLE: "table added",
    nft.DELTABLE: "table deleted",
    nft.NEWCHAIN: "chain added",
    nft.DELCHAIN: "chain deleted",
    nft.NEWRULE: "rule added",
    nft.DELRULE: "rule deleted",
    nft.NEWSET: "set added",
    nft.DELSET: "set deleted",
    nft.NEWSETELEM: "element added",
    nft.DELSETELEM: "element deleted",
}


class DriftMonitor:
    """Foreign changes to one family's table, as sentences."""

    def __init__(self, layout: FamilyLayout, author: int) -> None:
        self._family = layout.number
        self._monitor: NetlinkMonitor = nft.open_monitor(author)

    def close(self) -> None:
        self._monitor.close()

    async def run(self, drifted: DriftListener) -> None:
        """Tell about foreign changes until cancelled."""
        while True:
            seen: Counter[str] = Counter()
            await self._gather(seen)
            if seen:
                drifted(summary(seen))

    async def _gather(self, seen: Counter[str]) -> None:
        try:
            seen.update(self._relevant(await self._monitor.receive()))
            if seen:
                await asyncio.sleep(_SETTLE_SECONDS)
            while messages := self._monitor.receive_now():
                seen.update(self._relevant(messages))
        except Overrun:
            seen["some news was lost, so anything may have changed"] += 1

    def _relevant(self, messages: list[Message]) -> list[str]:
        found = (nft.parse_news(message) for message in messages)
        return [_sentence(news) for news in found if news and is_drift(news, self._family)]


def is_drift(news: nft.News, family: int) -> bool:
    """Is it our table, and not merely a client remembered by an affinity set?"""
    if news.family != family or news.table != names.TABLE_NAME:
        return False
    is_element = news.kind in (nft.NEWSETELEM, nft.DELSETELEM)
    return not (is_element and news.name.startswith(names.AFFINITY_PREFIX))


def _sentence(news: nft.News) -> str:
    what = _KINDS[news.kind]
    return f"{what} ({news.name})" if news.name else what


_TELL_AT_MOST = 5


def summary(seen: Counter[str]) -> str:
    """The most frequent changes, with how often."""
    told = [
        sentence if count == 1 else f"{count} × {sentence}"
        for sentence, count in seen.most_common(_TELL_AT_MOST)
    ]
    more = len(seen) - len(told)
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")
