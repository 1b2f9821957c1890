"""Connection tracking over ctnetlink: delete UDP flows, list entries, follow events.

Why: after endpoints change, established UDP flows keep going where they went (`plan.conntrack`
decides which are wrong). Promises: an entry is deleted by its own tuple and id, without listing
twice, and a new flow between the same ends has another id. The event loop is given a turn after
every datagram, so a table of a million entries does not stall it, and entries are examined as they
arrive, not collected. Events that the kernel dropped because they were not read in time are
counted. Leaves to others: which flows are stale, and what entries mean.
"""

from __future__ import annotations

import asyncio
import errno as errnos
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.ids import Family
from kubeproxy.kernel.conntrack import wire
from kubeproxy.kernel.conntrack.wire import (
    NFNLGRP_CONNTRACK_DESTROY,
    NFNLGRP_CONNTRACK_NEW,
    Entry,
    Event,
    Flow,
    format_dump,
    parse_entries,
    parse_events,
)
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.socket import (
    NETLINK_NETFILTER,
    NetlinkMonitor,
    NetlinkSocket,
    Overrun,
    kernel_error,
)

_ATTEMPTS = 5
_DELETES_PER_DATAGRAM = 64
_TRANSIENT = frozenset({errnos.EINTR, errnos.EAGAIN})

FIRST_BUFFER = 1 << 20
LARGEST_BUFFER = 1 << 25
"""32 MB: some 40,000 events. The kernel counts each with what it allocates for it."""

FILTER_LIMIT = 8
"""Up to this many destinations are asked for one by one: each request walks the kernel's table,
but only what matches is copied out and parsed."""

IsStale: TypeAlias = Callable[[bytes, bytes], bool]
"""(original destination, reply source), each as packed address and port."""


class Cleaned(Struct, frozen=True):
    """The number of deleted entries, and what went wrong, in words."""

    deleted: int
    problems: tuple[str, ...] = ()


async def clean_udp(
    family: Family, is_stale: IsStale, destinations: Collection[bytes] = ()
) -> Cleaned:
    """Delete the UDP flows of a family for which `is_stale` is true.

    `destinations` (packed address and port, or a port alone) are the only ones that can be stale;
    none given means any. The table is that of the current network namespace. Raises KernelError
    if it cannot be listed.
    """
    with Conntrack(family) as table:
        stale, problems = await table.find(is_stale, destinations)
        deleted = 0
        for start in range(0, len(stale), _DELETES_PER_DATAGRAM):
            chunk = stale[start : start + _DELETES_PER_DATAGRAM]
            refusals = table.delete(chunk)
            deleted += len(chunk) - len(refusals)
            problems += refusals
            await asyncio.sleep(0)
    return Cleaned(deleted, tuple(dict.fromkeys(problems)))


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

    async def find(
        self, is_stale: IsStale, destinations: Collection[bytes] = ()
    ) -> tuple[list[Flow], list[str]]:
        """The stale flows, each once, and what went wrong.

        A listing that the kernel interrupts is repeated; the flows that it found count as well.
        """
        found: dict[bytes, Flow] = {}
        problems: list[str] = []
        for destination in destinations if 0 < len(destinations) <= FILTER_LIMIT else (b"",):
            for _ in range(_ATTEMPTS):
                for flows in self.listing(destination):
                    found |= {f.key: f for f in flows if is_stale(f.destination, f.reply_source)}
                    await asyncio.sleep(0)
                if not self.is_interrupted:
                    break
            else:
                problems.append(
                    "conntrack table kept changing while it was listed: partial list used"
                )
        return list(found.values()), problems

    def listing(self, destination: bytes = b"") -> Iterator[list[Flow]]:
        """UDP flows, a datagram at a time: those to one destination, to one port, or all."""
        self.is_interrupted = False
        flags = codec.NLM_F_REQUEST | codec.NLM_F_DUMP
        body = wire.format_listing(self._family, destination)
        self._send(codec.message(wire.IPCTNL_MSG_CT_GET, flags, self.reserve(1), body))
        errno = None
        while errno is None:
            part = wire.parse_listing(self._receive("list conntrack entries"), self._family)
            errno = part.errno
            self.is_interrupted |= part.is_interrupted or errno == errnos.EINTR
            yield part.flows
        if errno not in (0, errnos.EINTR):
            raise kernel_error(errno, "list conntrack entries")

    def entries(self) -> Iterator[list[Entry]]:
        """Every TCP, UDP and SCTP entry, a datagram at a time.

        What comes and goes meanwhile may be missing: no table of a busy node stands still.
        """
        flags = codec.NLM_F_REQUEST | codec.NLM_F_DUMP
        body = format_dump(self._family)
        self._send(codec.message(wire.IPCTNL_MSG_CT_GET, flags, self.reserve(1), body))
        errno = None
        while errno is None:
            found, errno, _ = parse_entries(self._receive("list conntrack entries"), self._family)
            yield found
        if errno not in (0, errnos.EINTR):
            raise kernel_error(errno, "list conntrack entries")

    def delete(self, flows: Sequence[Flow]) -> list[str]:
        """Delete these flows. Return the refusals in words; a flow that has gone is none."""
        bodies = [wire.format_delete(self._family, flow) for flow in flows]
        refusals: list[codec.Failure] = []
        for attempt in range(_ATTEMPTS):
            failures = self._delete_once(bodies)
            retry = {body for body, failure in failures if failure.errno in _TRANSIENT}
            if attempt == _ATTEMPTS - 1:
                retry = set()
            refusals += [failure for body, failure in failures if body not in retry]
            bodies = list(retry)
            if not bodies:
                break
        return [str(kernel_error(r.errno, "delete conntrack entry", r.text)) for r in refusals]

    def _delete_once(self, bodies: Sequence[bytes]) -> list[tuple[bytes, codec.Failure]]:
        first = self.reserve(len(bodies))
        failures = self.transact(
            b"".join(
                codec.message(wire.IPCTNL_MSG_CT_DELETE, codec.NLM_F_REQUEST, seq, body)
                for seq, body in enumerate(bodies, first)
            )
        )
        return [(bodies[f.seq - first], f) for f in failures if f.errno != errnos.ENOENT]


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
