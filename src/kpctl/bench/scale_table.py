"""The table "Scale: before and after" as data: what was, what is wanted, and where to look now.

A row says what a cost was before this work began, measured on a quiet machine; what it was held
against; and the name of the record that has the value of this run. Upstream's value in the same
record, or another record of ours, stands beside it. A row without a record says where the thing is
counted instead, since a count needs no run.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import msgspec

from kpctl.bench.promise import LIMITS_MS, MODES, PAUSES, PromiseEffort, measure_name
from kpctl.bench.records import OURS, UPSTREAM, Record, Size

_NFT, _IPTABLES = "nftables", "iptables"


class Row(msgspec.Struct, frozen=True, gc=False):
    """One line of the table. Without `most`, `least` and `is_race` nothing is aimed at."""

    words: str
    size: Size
    before: str = "–"
    floor: str = "–"
    """Upstream then, or what cannot be undercut."""
    aim: str = "–"
    mode: str = _NFT
    name: str = ""
    """Of the record. Records of a fleet are meant whatever number of proxies it has."""
    beside: str = ""
    """The record of ours that it is held against, instead of upstream's value."""
    most: float | None = None
    least: float | None = None
    is_race: bool = False
    """Is the aim to be no worse than what stands beside it?"""
    instead: str = ""
    """Where it is counted, if it is no record."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """A row and what a run found for it."""

    row: Row
    record: Record | None
    beside: Record | None = None

    @property
    def now(self) -> float | None:
        return None if self.record is None else self.record.ours

    @property
    def other(self) -> float | None:
        """What it is held against: another record of ours, or upstream in the same."""
        if self.row.beside:
            return None if self.beside is None else self.beside.ours
        return None if self.record is None else self.record.upstream

    @property
    def is_limit(self) -> bool:
        return self.record is not None and OURS in self.record.more_than

    @property
    def is_other_limit(self) -> bool:
        """Was upstream cut off?"""
        is_upstream = not self.row.beside and self.record is not None
        return is_upstream and self.record is not None and UPSTREAM in self.record.more_than

    @property
    def is_met(self) -> bool | None:
        """None if nothing is aimed at, or if a value is missing or says too little."""
        row, now, other = self.row, self.now, self.other
        if now is None:
            return None
        if row.least is not None:
            return now >= row.least
        most = other if row.is_race else row.most
        if most is None:
            return None
        if self.is_limit:
            return False if now >= most else None
        if now <= most:
            return True
        return None if row.is_race and self.is_other_limit else False


_100, _1K, _5K, _10K, _30K, _100K = (Size(n) for n in (100, 1000, 5000, 10_000, 30_000, 100_000))
_SMALL, _FLEET, _LARGE, _USERSPACE = Size(100), Size(500), Size(1, 5000), Size(2, 1)

_START_UP = "start-up until Services are watched"
_COLD = "cold start"
_REPAIRED = "one element deleted, repaired"
_RESTART = "restart over an existing table"
_REPLACED, _ADDED, _REMOVED = (
    f"engine, endpoint {kind}" for kind in ("replaced", "added", "removed")
)
_LARGE_REPLACED = "large Service, endpoint replaced"
_FLOWS = "500,000 flows"
_EMPTY = "endpoint added, empty table"

_DELAY = "0; met if below 50 ms with the change itself"

_QUICK = "`kpctl bench --quick`"
_MONITOR = "`tests/nftables/test_nft_kernel.py`"

_OF_THE_ISSUE = (
    Row("start-up until Services are watched", _SMALL, "0.53 s", "upstream 0.4 s", "0.25 s",
        name=_START_UP, most=0.25),
    Row("– processor time", _SMALL, name=f"{_START_UP}, CPU"),
    Row("cold start", _100, "0.55 s", "upstream 0.45 s", "0.30 s", name=_COLD, most=0.30),
    Row("cold start", _1K, "0.70 s", "upstream 0.66 s", "0.45 s", name=_COLD, most=0.45),
    Row("cold start", _10K, "3.0 s", "upstream 24 s", "2.0 s", name=_COLD, most=2.0),
    Row("– memory", _10K, "110 MB", "upstream 274 MB", name="memory after cold start"),
    Row("– facts", _10K, "0.5 s", name="first lists, as facts"),
    Row("– plans, ledger, compiling and the kernel", _10K, "ledger 0.35 s, compile 0.25 s",
        name="first round of the engine"),
    Row("– the kernel's part of that", _10K, "0.45 s",
        name="first round of the engine, kernel's part"),
    Row("one element deleted by another program: repaired", _10K, "0.7–1.1 s", "settling 0.05 s",
        "0.1 s", name=_REPAIRED, most=0.1),
    Row("one element deleted by another program: repaired", _30K, "4 s", "settling 0.05 s",
        "0.1 s", name=_REPAIRED, most=0.1),
    Row("– full reads of the kernel for that", _30K, "1 each", "0", "0",
        name="one element deleted, full reads", most=0),
    Row("second read after a flush", _10K, "1", "0", "0", instead=_MONITOR),
    Row("messages parsed of the other family's cold start", _10K, "124,000", "0", "0",
        instead=_MONITOR),
    Row("restart over an existing table", _10K, "2.8 s", "cold start", "the cold start beside it",
        name=_RESTART, beside=f"{_RESTART}, cold start beside it", is_race=True),
    Row("restart over an existing table", _30K, "10 s", "cold start", "the cold start beside it",
        name=_RESTART, beside=f"{_RESTART}, cold start beside it", is_race=True),
    Row("restart over an existing table", _100K, "73 s", "cold start", "the cold start beside it",
        name=_RESTART, beside=f"{_RESTART}, cold start beside it", is_race=True),
    Row("endpoint added", _10K, "4 ms", "replaced: 2–3 ms", "10 ms at 100,000",
        name=_ADDED, beside=_REPLACED, most=10),
    Row("endpoint removed: out of use", _10K, "4 ms", "replaced: 2–3 ms", "10 ms at 100,000",
        name=f"{_REMOVED}, without waiting for packets", beside=_REPLACED, most=10),
    Row("endpoint added", _100K, "60 ms", "replaced: 2–3 ms", "10 ms",
        name=_ADDED, beside=_REPLACED, most=10),
    Row("– the kernel's part", _100K, name=f"{_ADDED}, kernel's part"),
    Row("endpoint removed: out of use", _100K, "60 ms", "replaced: 2–3 ms", "10 ms",
        name=f"{_REMOVED}, without waiting for packets", beside=_REPLACED, most=10),
    Row("– the kernel's part", _100K, name=f"{_REMOVED}, kernel's part"),
    Row("– until its slot is gone: packets under way are waited for", _100K, name=_REMOVED),
    Row("cold start", _100K, "36 s", aim="20 s", name=_COLD, most=20),
    Row("– memory", _100K, "602 MB", aim="450 MB", name="memory after cold start", most=450),
    Row("Service with 5,000 endpoints, one replaced", _LARGE, "15–30 ms", "decoding 1.3 ms", "5 ms",
        name=_LARGE_REPLACED, beside="large Service, slice decoded", most=5),
    Row(f"{_FLOWS}: the next change while flows of one endpoint are deleted", _1K, "0.2 s",
        "upstream 5.3 s", _DELAY, name=f"{_FLOWS}, one endpoint replaced: endpoint added meanwhile",
        most=50),
    Row(f"{_FLOWS}: the same, of 100 Services", _1K, "1.7–1.9 s", "upstream 5.3 s", _DELAY,
        name=f"{_FLOWS}, an endpoint of 100 Services replaced: endpoint added meanwhile", most=50),
    Row(f"{_FLOWS}: the same, after a restart", _1K, "1.9 s", "upstream 0 s", _DELAY,
        name=f"{_FLOWS}, restart: endpoint added meanwhile", most=50),
    Row("– the same change with an empty table", _1K, name=_EMPTY),
    Row("iptables-nft: first sync", _5K, "9.1 s", "the kernel validates the table with each commit",
        "5 s", mode=_IPTABLES, name="first sync with iptables-nft", most=5),
    Row("iptables-legacy: cold start", _1K, "0.99 s", "upstream 0.78 s", "upstream's",
        mode=_IPTABLES, name=_COLD, is_race=True),
    Row("iptables-legacy: cold start", _5K, "3.6 s", "upstream 3.35 s", "upstream's",
        mode=_IPTABLES, name=_COLD, is_race=True),
    Row("bytes of the first lists", _10K, "27.9 MB", "upstream about 12 MB", "upstream's",
        name="bytes of the first lists", is_race=True),
    Row("userspace: new connections, as a share of HAProxy's", _USERSPACE, "0.77–0.88 ×",
        "22 system calls against 18", "1.0 ×", mode="userspace",
        name="new connections, share of HAProxy's", least=1.0),
    Row("idle: wake-ups", _SMALL, "0", "upstream 52–156 per minute", "0",
        name="idle, wake-ups", most=0),
    Row("idle: private memory", _SMALL, "34 MB", "upstream 58 MB", "25 MB",
        name="idle, private memory", most=25),
)  # fmt: skip

_COUNTED = (
    Row("work for one change, in any cluster", Size(2000), "the same", "the same", "the same",
        instead=_QUICK),
)  # fmt: skip

_OF_FLEETS = tuple(
    Row(f"fleet: {words}", _FLEET, name=name)
    for words, name in (
        ("requests of a start", "start, requests"),
        ("bytes of a start", "start, bytes"),
        ("API server's CPU for a start", "start, API server CPU"),
        ("API server's memory for a start", "start, API server memory"),
        ("until the last of all has synced", "start of all, until the last has synced"),
        ("memory of a proxy", "memory"),
        ("requests of the churn", "churn, requests"),
        ("bytes of one change", "churn, bytes of a change"),
        ("API server's CPU for one change", "churn, API server CPU of a change"),
        ("event at the node, p50", "watch lag, p50"),
        ("event at the node, p99", "watch lag, p99"),
        ("kernel programmed, p50", "programmed, p50"),
        ("kernel programmed, p99", "programmed, p99"),
    )
)

_OF_PROMISES = tuple(
    Row(
        f"promise in {mode} mode: p99 at 1,000 changes/s, `minSyncPeriod` {pause}",
        _10K,
        aim=f"{LIMITS_MS[pause]:g} ms",
        mode=mode,
        name=f"{measure_name(PromiseEffort().rate, pause)}, p99",
        most=LIMITS_MS[pause],
    )
    for mode, pause in product(MODES, PAUSES)
)

ROWS = (*_OF_THE_ISSUE, *_COUNTED, *_OF_FLEETS, *_OF_PROMISES)


def find_rows(records: Iterable[Record]) -> tuple[Found, ...]:
    """Every row with what was found for it."""
    known = {(r.mode, _plain(r.name), r.size): r for r in records}

    def look_up(row: Row, name: str) -> Record | None:
        return known.get((row.mode, name, str(row.size))) if name else None

    return tuple(Found(row, look_up(row, row.name), look_up(row, row.beside)) for row in ROWS)


def _plain(name: str) -> str:
    """A record's name without the number of proxies of a fleet."""
    return name.partition(": ")[2] if name.startswith("fleet of ") else name
