"""Where new connections come from: conntrack events, differences of listings, or the proxy.

Events cost least and miss nothing but overruns, which are counted. A kernel that sends none
(net.netfilter.nf_conntrack_events is 0) is listed each interval instead, and connections shorter
than that are not seen. In userspace mode the proxy itself counts.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from kpctl.connections.flows import end_text
from kpctl.snapshot.client import Client
from kpctl.top.sample import Traffic
from kubeproxy.facts.ids import Family, ServicePortId
from kubeproxy.kernel.conntrack.entries import Entry
from kubeproxy.kernel.conntrack.table import Conntrack, ConntrackEvents
from kubeproxy.plan.frontends import Frontends

EVENTS_SWITCH = Path("/proc/sys/net/netfilter/nf_conntrack_events")
DATAGRAMS_AT_ONCE = 512
_FlowKey = tuple[bytes, bytes, bytes]


class Source(Protocol):
    """Counts new connections. `note` says what it cannot see; `overruns` how often it lost some."""

    note: str

    @property
    def overruns(self) -> int: ...

    def wait(self, frontends: Mapping[Family, Frontends], traffic: Traffic, until: float) -> None:
        """Count until this time (monotonic)."""

    def close(self) -> None: ...


def are_events_on() -> bool:
    try:
        return EVENTS_SWITCH.read_text().strip() != "0"
    except OSError:
        return True  # asking for them will show


class EventSource:
    """Conntrack events."""

    note = ""

    def __init__(self) -> None:
        self._events = ConntrackEvents()

    @property
    def overruns(self) -> int:
        return self._events.overruns

    def wait(self, frontends: Mapping[Family, Frontends], traffic: Traffic, until: float) -> None:
        poller = select.poll()
        poller.register(self._events.fileno(), select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            if poller.poll(left * 1000):
                for event in self._events.read(DATAGRAMS_AT_ONCE):
                    if event.is_new and event.family in frontends:
                        _count(traffic, event.family, frontends[event.family], event.entry)

    def close(self) -> None:
        self._events.close()


class ListingSource:
    """Differences between two listings of conntrack."""

    note = (
        "connections shorter than the interval are not seen: this kernel sends no conntrack"
        " events (net.netfilter.nf_conntrack_events=0)"
    )
    overruns = 0

    def __init__(self) -> None:
        self._known: dict[Family, set[_FlowKey]] = {}

    def wait(self, frontends: Mapping[Family, Frontends], traffic: Traffic, until: float) -> None:
        if not self._known:
            self._list(frontends, Traffic())
        time.sleep(max(until - time.monotonic(), 0))
        self._list(frontends, traffic)

    def _list(self, frontends: Mapping[Family, Frontends], traffic: Traffic) -> None:
        for family, index in frontends.items():
            known, found = self._known.get(family, set()), set[_FlowKey]()
            with Conntrack(family) as table:
                for entries in table.entries():
                    for entry in entries:
                        if index.find(entry.protocol, entry.destination) is None:
                            continue
                        key = (entry.source, entry.destination, entry.reply_source)
                        found.add(key)
                        if key not in known:
                            _count(traffic, family, index, entry)
            self._known[family] = found

    def close(self) -> None:
        self._known.clear()


def _count(traffic: Traffic, family: Family, frontends: Frontends, entry: Entry) -> None:
    plan = frontends.find(entry.protocol, entry.destination)
    if plan is not None and entry.is_translated:
        traffic.add(family, plan.id, end_text(entry.reply_source))


class CarriedSource:
    """The proxy's own counts, in userspace mode."""

    note = ""
    overruns = 0

    def __init__(self, client: Client) -> None:
        self._client = client
        self._before: dict[tuple[Family, ServicePortId, str], int] | None = None

    def wait(self, frontends: Mapping[Family, Frontends], traffic: Traffic, until: float) -> None:
        before = self._totals() if self._before is None else self._before
        time.sleep(max(until - time.monotonic(), 0))
        self._before = self._totals()
        for (family, owner, endpoint), total in self._before.items():
            held = before.get((family, owner, endpoint), 0)
            new = total - held if total >= held else total  # a new carrier counts from 0
            if new:
                traffic.add(family, owner, endpoint, new)

    def _totals(self) -> dict[tuple[Family, ServicePortId, str], int]:
        return {
            (family, count.owner, count.endpoint): count.total
            for family, carried in self._client.connections().families.items()
            for count in carried.counts
        }

    def close(self) -> None:
        self._client.close()
