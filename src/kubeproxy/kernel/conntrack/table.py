"""Connection tracking over ctnetlink: look for stale flows and delete them, list, follow events.

Why: after endpoints change, established UDP flows keep going where they went (`plan.conntrack`
decides which are wrong). Promises: an entry is deleted by its own tuple and id, without listing
twice, and a new flow between the same ends has another id. A search is done in another thread, a
few datagrams at a time: the kernel's part needs no Python, and parsing a datagram takes a fraction
of a millisecond, so a table of a million entries does not stall the event loop. What a datagram
holds is deleted before the next one is read: memory does not grow with the table or with what is
stale. Events that the kernel dropped because they were not read in time are counted. Leaves to
others: which flows are stale, closing sockets (`sock_diag`), what entries mean, and what to do when
a search fails.
"""

from __future__ import annotations

import asyncio
import errno as errnos
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.errors import Busy, KernelError
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.conntrack import wire
from kubeproxy.kernel.conntrack.entries import (
    Entry,
    Event,
    format_dump,
    parse_entries,
    parse_events,
)
from kubeproxy.kernel.conntrack.wire import (
    NFNLGRP_CONNTRACK_DESTROY,
    NFNLGRP_CONNTRACK_NEW,
    Flow,
    ListingPart,
)
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.socket import (
    NETLINK_NETFILTER,
    NetlinkMonitor,
    NetlinkSocket,
    Overrun,
    kernel_error,
)
from kubeproxy.kernel.rcu import wait_for_readers
from kubeproxy.kernel.sock_diag.wire import Closed, Ends

_ATTEMPTS = 5
_DELETES_PER_DATAGRAM = 64
_TRANSIENT = frozenset({errnos.EINTR, errnos.EAGAIN})

DATAGRAMS_PER_STEP = 8
"""A datagram has up to 32 kB, some 170 flows: a step takes some 5 ms, most of it in the kernel."""

LONGEST_SEARCH_SECONDS = 60.0
"""Half a million entries take 2 seconds."""

FIRST_BUFFER = 1 << 20
LARGEST_BUFFER = 1 << 25
"""32 MB: some 40,000 events. The kernel counts each with what it allocates for it."""

IsStale: TypeAlias = Callable[[bytes, bytes], bool]
"""(original destination, reply source), each as packed address and port."""


CloseSockets: TypeAlias = Callable[[Family, Protocol, Sequence[Ends]], Closed]
"""Closes the sockets of this network namespace that have sent these flows."""


def close_none(_family: Family, _protocol: Protocol, _flows: Sequence[Ends]) -> Closed:
    return Closed()


class Search(Struct, frozen=True):
    """Which flows to delete: those for which `is_stale` is true.

    Only flows to `destinations` (packed address and port, or a port alone) and to `addresses` are
    looked at; by default all are. Of stale flows for which `is_noticed` is true the senders'
    sockets are closed, if they are on this node. `wait_turn` is called before each datagram, to let
    others go first. All functions are called by another thread.
    """

    family: Family
    protocol: Protocol
    is_stale: IsStale
    destinations: Collection[bytes] = ()
    addresses: Collection[bytes] | None = None
    wait_turn: Callable[[], None] = lambda: None
    is_noticed: IsStale = lambda _destination, _reply_source: False
    close_sockets: CloseSockets = close_none


class Searched(Struct, frozen=True):
    """What a search did: the number of deleted entries, and what went wrong.

    `reset` counts those whose senders were to notice, `closed` their sockets on this node;
    `unclosed` is why others could not be closed. `refused` has the destinations of flows that were
    not deleted, each with the reason. With `error`, not the whole table was seen.
    """

    deleted: int = 0
    refused: Mapping[bytes, str] = {}
    error: str = ""
    reset: int = 0
    closed: int = 0
    unclosed: str = ""


async def delete_stale(search: Search) -> Searched:
    """Delete stale flows of the current network namespace. Failures are part of the result.

    A flow that begins after this call is not found, unless packets are older than the call.
    """
    done = _Progress()
    try:
        with Conntrack(search.family) as listing, Conntrack(search.family) as deleting:
            # Packets that have met the rules of before, but are not in the table yet.
            await asyncio.to_thread(wait_for_readers)
            for destination in wire.narrow(search.family, search.destinations):
                await _search_in(listing, deleting, search, destination, done)
    except KernelError as error:
        return done.searched(str(error))
    return done.searched()


class _Progress:
    """What a search has done so far."""

    def __init__(self) -> None:
        self.deleted = 0
        self.refused: dict[bytes, str] = {}
        self.reset = self.closed = 0
        self.unclosed = ""
        self.deadline = time.monotonic() + LONGEST_SEARCH_SECONDS

    def searched(self, error: str = "") -> Searched:
        return Searched(self.deleted, self.refused, error, self.reset, self.closed, self.unclosed)


async def _search_in(
    listing: Conntrack, deleting: Conntrack, search: Search, destination: bytes, done: _Progress
) -> None:
    """Go through one listing. If the kernel interrupts it, it is repeated."""
    for _ in range(_ATTEMPTS):
        parts = listing.listing(search.protocol, destination, search.addresses)
        # The iterator is taken up by one thread after the other, never by two.
        while await asyncio.to_thread(_search_some, parts, deleting, search, done):
            if time.monotonic() > done.deadline:
                raise Busy(f"conntrack table not seen through in {LONGEST_SEARCH_SECONDS:g} s")
        if not listing.is_interrupted:
            return
    raise Busy("conntrack table kept changing while it was listed", errno=errnos.EINTR)


def _search_some(
    parts: Iterator[list[Flow]], deleting: Conntrack, search: Search, done: _Progress
) -> bool:
    """Take a few datagrams and delete what is stale. Return False at the end."""
    for _ in range(DATAGRAMS_PER_STEP):
        search.wait_turn()
        flows = next(parts, None)
        if flows is None:
            return False
        stale = {f.key: f for f in flows if search.is_stale(f.destination, f.reply_source)}
        _close_senders(list(stale.values()), search, done)
        refused = deleting.delete(list(stale.values()))
        done.deleted += len(stale) - len(refused)
        done.refused |= {flow.destination: why for flow, why in refused}
    return True


def _close_senders(stale: Sequence[Flow], search: Search, done: _Progress) -> None:
    """Close the sockets whose owners are to notice that their flow ends.

    Before the flow is deleted: a closed socket of TCP sends a reset, which reaches the endpoint
    only as long as it is translated.
    """
    noticed = [f for f in stale if search.is_noticed(f.destination, f.reply_source)]
    if not noticed:
        return
    closed = search.close_sockets(
        search.family,
        search.protocol,
        [Ends(wire.source_of(flow, search.family), flow.destination) for flow in noticed],
    )
    done.reset += len(noticed)
    done.closed += closed.count
    done.unclosed = closed.error or done.unclosed


class Conntrack(NetlinkSocket):
    """The conntrack table of one family, in the current network namespace.

    A socket itself, where the other tables have one: a listing is taken datagram by datagram,
    and `NetlinkSocket.dump` would collect all of it.
    """

    def __init__(self, family: Family) -> None:
        super().__init__(NETLINK_NETFILTER)
        self._family = family
        self.is_interrupted = False
        """Did the kernel rebuild the table during the last listing?"""

    def __enter__(self) -> Conntrack:
        return self

    def listing(
        self,
        protocol: Protocol,
        destination: bytes = b"",
        addresses: Collection[bytes] | None = None,
    ) -> Iterator[list[Flow]]:
        """Flows of a protocol, a datagram at a time: to one destination, to one port, or all.

        `addresses`: of those, only flows that were sent to one of these addresses.
        """
        self.is_interrupted = False
        self._request_dump(wire.format_listing(self._family, protocol, destination))
        part = ListingPart([], None, is_interrupted=False)
        while part.errno is None:
            data = self._receive("list conntrack entries")
            part = wire.parse_listing(data, self._family, protocol, addresses)
            self.is_interrupted |= part.is_interrupted or part.errno == errnos.EINTR
            yield part.flows
        _check_end(part.errno)

    def entries(self) -> Iterator[list[Entry]]:
        """Every TCP, UDP and SCTP entry, a datagram at a time.

        What comes and goes meanwhile may be missing: no table of a busy node stands still.
        """
        self._request_dump(format_dump(self._family))
        errno = None
        while errno is None:
            found, errno, _ = parse_entries(self._receive("list conntrack entries"), self._family)
            yield found
        _check_end(errno)

    def _request_dump(self, body: bytes) -> None:
        flags = codec.NLM_F_REQUEST | codec.NLM_F_DUMP
        self._send(codec.message(wire.IPCTNL_MSG_CT_GET, flags, self.reserve(1), body))

    def delete(self, flows: Sequence[Flow]) -> list[tuple[Flow, str]]:
        """Delete these flows. Return those that were refused, and why; one that has gone is not."""
        return [
            refused
            for start in range(0, len(flows), _DELETES_PER_DATAGRAM)
            for refused in self._delete_some(flows[start : start + _DELETES_PER_DATAGRAM])
        ]

    def _delete_some(self, flows: Sequence[Flow]) -> Iterable[tuple[Flow, str]]:
        for attempt in range(_ATTEMPTS):
            failures = self._delete_once(flows)
            is_last = attempt == _ATTEMPTS - 1
            for flow, failure in failures:
                if is_last or failure.errno not in _TRANSIENT:
                    error = kernel_error(failure.errno, "delete conntrack entry", failure.text)
                    yield flow, str(error)
            flows = [flow for flow, failure in failures if failure.errno in _TRANSIENT]
            if not flows:
                return

    def _delete_once(self, flows: Sequence[Flow]) -> list[tuple[Flow, codec.Failure]]:
        first = self.reserve(len(flows))
        bodies = (wire.format_delete(self._family, flow) for flow in flows)
        failures = self.transact(
            b"".join(
                codec.message(wire.IPCTNL_MSG_CT_DELETE, codec.NLM_F_REQUEST, seq, body)
                for seq, body in enumerate(bodies, first)
            )
        )
        return [(flows[f.seq - first], f) for f in failures if f.errno != errnos.ENOENT]


def _check_end(errno: int) -> None:
    """Raise what a listing ended with. An interrupted one is whole, but for what moved."""
    if errno not in (0, errnos.EINTR):
        raise kernel_error(errno, "list conntrack entries")


class ConntrackEvents:
    """Flows that come and go, as they do. `overruns` counts how often some were lost.

    The receive buffer grows each time that happens, up to a limit.
    """

    def __init__(self, *, with_ends: bool = False) -> None:
        """`with_ends`: also flows that end, of which the kernel may have counted bytes."""
        groups = [NFNLGRP_CONNTRACK_NEW, *([NFNLGRP_CONNTRACK_DESTROY] if with_ends else [])]
        self._buffer = FIRST_BUFFER
        self._monitor = NetlinkMonitor(NETLINK_NETFILTER, groups, receive_buffer=FIRST_BUFFER)
        self.overruns = 0

    def fileno(self) -> int:
        return self._monitor.fileno()

    def close(self) -> None:
        self._monitor.close()

    def read(self, most: int) -> Iterator[Event]:
        """Events that have arrived, of up to `most` datagrams. Raises KernelError."""
        for _ in range(most):
            try:
                data = self._monitor.receive_datagram()
            except Overrun:
                self._overrun()
                continue
            if not data:
                return
            yield from parse_events(data)

    def _overrun(self) -> None:
        self.overruns += 1
        if self._buffer < LARGEST_BUFFER:
            self._buffer *= 2
            self._monitor.grow(self._buffer)
