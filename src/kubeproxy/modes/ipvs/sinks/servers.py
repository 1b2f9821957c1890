"""The sink for virtual servers and their real servers.

IPVS has no transactions, so every message stands for itself and is forgiving: what should be made
and is there is set instead, what should be set and is gone is made, what should go and is gone is
fine. A batch may therefore be repeated, halved or cut short at any point.

Recognised as ours: see `ownership`. Real servers that are draining are ours to watch and are not
shown to the ledger; after a restart they are found again by their weight of 0.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kubeproxy.errors import Drifted, Rejected
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipvs import wire as ipvs
from kubeproxy.kernel.ipvs.wire import Service
from kubeproxy.kernel.netlink.bulk import Refusal
from kubeproxy.kernel.netlink.socket import kernel_error
from kubeproxy.modes.base import Batch, Change, Item, Value
from kubeproxy.modes.ipvs.compile import requests
from kubeproxy.modes.ipvs.compile.requests import Work, compile_change, key_of
from kubeproxy.modes.ipvs.items import Destination, ServerSpec, VirtualServer
from kubeproxy.modes.ipvs.rules.ownership import Exclusions, find_traces
from kubeproxy.modes.ipvs.sinks.addresses import bound_addresses
from kubeproxy.modes.ipvs.sinks.draining import Draining, Place
from kubeproxy.modes.ipvs.sinks.sets import SetSink
from kubeproxy.modes.ipvs.sinks.tables import Tables

_MESSAGES_PER_BATCH = 1000
_READS_PER_TURN = 100
"""Between so many listings others get a turn: a full read of a big table takes a while."""

_RETRIED = frozenset(
    {
        (ipvs.NEW_SERVICE, errno.EEXIST),
        (ipvs.NEW_DEST, errno.EEXIST),
        (ipvs.SET_DEST, errno.ENOENT),
    }
)
_FINE = frozenset(
    {
        (ipvs.DEL_SERVICE, errno.ESRCH),
        (ipvs.DEL_DEST, errno.ENOENT),
        (ipvs.DEL_DEST, errno.ESRCH),
    }
)


class ServerSink:
    """The virtual servers of one family."""

    name = "ipvs"
    item_types: tuple[type, ...] = (VirtualServer,)

    def __init__(
        self,
        tables: Tables,
        family: Family,
        sets: SetSink,
        *,
        exclude_cidrs: Iterable[str] = (),
        drain_limit_seconds: float,
    ) -> None:
        self.draining = Draining(drain_limit_seconds)
        self._tables = tables
        self._family = family
        self._sets = sets
        self._exclusions = Exclusions(family, exclude_cidrs)
        self._made: set[VirtualServer] = set()

    # --- reading ---

    async def read(self) -> Mapping[Item, Value]:
        found: dict[Item, Value] = {}
        for count, (server, service) in enumerate(self._ours()):
            if count % _READS_PER_TURN == 0:
                await asyncio.sleep(0)
            found[server] = self._spec(server, service)
        return found

    def _ours(self) -> list[tuple[VirtualServer, Service]]:
        bound = bound_addresses(self._tables.links, self._family)
        traces = find_traces(self._family, self._sets.last_read, bound)
        listed = [
            (VirtualServer(service.protocol, service.address, service.port), service)
            for service in self._tables.ipvs.services()
            if (":" in service.address) == (self._family is Family.IPV6)
        ]
        return [
            (server, service)
            for server, service in listed
            if server in self._made
            or (traces.include(server) and not self._exclusions.cover(server.address))
        ]

    def _spec(self, server: VirtualServer, service: Service) -> ServerSpec:
        draining = self.draining.places(server)
        present = (d for d in self._list(server) if d.place not in draining or d.weight)
        return ServerSpec(
            scheduler=service.scheduler,
            flags=service.flags,
            timeout_seconds=service.timeout_seconds,
            destinations=tuple(sorted(present, key=lambda d: d.place)),
        )

    def _list(self, server: VirtualServer) -> list[Destination]:
        listed = self._tables.ipvs.destinations(server.protocol, server.address, server.port)
        return [Destination(d.address, d.port, d.weight, d.forward) for d in listed]

    # --- changing ---

    def compile(self, changes: Sequence[Change]) -> Iterator[Batch]:
        batch: list[Change] = []
        works: list[Work] = []
        messages = 0
        for change in changes:
            work = _work(change)
            batch.append(change)
            works.append(work)
            messages += len(work.bodies)
            if messages >= _MESSAGES_PER_BATCH:
                yield _batch(batch, works)
                batch, works, messages = [], [], 0
        if batch:
            yield _batch(batch, works)

    async def apply(self, batch: Batch) -> None:
        """Part of a refused batch may be in the kernel; doing it again does no harm."""
        works = _works(batch)
        wanted = {c.item: c.new for c in batch.changes}
        found_there, problems = self._send(works)
        for work in works:
            spec = wanted[work.server]
            if isinstance(spec, ServerSpec):
                self._made.add(work.server)
                self.draining.discard(work.server, (d.place for d in spec.destinations))
                surplus = self._surplus(work.server, spec) if work.server in found_there else ()
                self._let_go(work.server, (*work.leaving, *surplus))
            else:
                self._made.discard(work.server)
                self.draining.forget(work.server)
        if problems:
            raise Rejected("; ".join(problems[:3]))

    def _send(self, works: Sequence[Work]) -> tuple[set[VirtualServer], list[str]]:
        """Carry out all messages; virtual servers that were there already, and what failed."""
        bodies = [(work.server, body) for work in works for body in work.bodies]
        refused = self._tables.ipvs.send([body for _, body in bodies])
        again = [bodies[r.place] for r in refused if _outcome(bodies[r.place][1], r) in _RETRIED]
        second = self._tables.ipvs.send([requests.second_try(body) for _, body in again])
        failed = [
            (*bodies[r.place], r)
            for r in refused
            if _outcome(bodies[r.place][1], r) not in _RETRIED | _FINE
        ]
        failed += [(*again[r.place], r) for r in second]
        for server, _, refusal in failed:
            if refusal.failure.errno == errno.ESRCH:
                raise Drifted(f"virtual server {server} has vanished", errno=errno.ESRCH)
        found_there = {server for server, body in again if body[0] == ipvs.NEW_SERVICE}
        return found_there, [_words(*failure) for failure in failed]

    def _surplus(self, server: VirtualServer, spec: ServerSpec) -> tuple[Destination, ...]:
        """Real servers nobody wants, on a virtual server we thought did not exist."""
        wanted = {d.place for d in spec.destinations}
        return tuple(d for d in self._list(server) if d.place not in wanted)

    def _let_go(self, server: VirtualServer, leaving: Sequence[Destination]) -> None:
        """Stop scheduling to these; delete the idle ones now, the others when they are idle."""
        if not leaving:
            return
        key = key_of(server)
        if server.protocol in requests.DRAINED:
            # Weight first: between looking and deleting no connection can slip in.
            self._tables.ipvs.send([requests.quiesce(key, d) for d in leaving])
            self.draining.add(server, (d.place for d in leaving))
            self._delete_idle(server, frozenset())
        else:
            self._tables.ipvs.send([requests.delete(key, d) for d in leaving])

    # --- draining ---

    def drain(self, now: float) -> None:
        """Delete the real servers that have become idle, or have waited too long."""
        if not self.draining.is_due(now):
            return
        self.draining.begin_pass(now)
        for server in self.draining.servers():
            self._delete_idle(server, self.draining.expired(server, now))

    def _delete_idle(self, server: VirtualServer, expired: frozenset[Place]) -> None:
        listed = self._tables.ipvs.destinations(server.protocol, server.address, server.port)
        connections = {(d.address, d.port): d.connections for d in listed}
        waiting = tuple(self.draining.places(server))
        gone = [place for place in waiting if place not in connections]
        done = [p for p in waiting if connections.get(p) == 0 or (p in expired and p not in gone)]
        key = key_of(server)
        self._tables.ipvs.send([requests.delete(key, Destination(*place)) for place in done])
        self.draining.discard(server, (*gone, *done))


def _work(change: Change) -> Work:
    if not isinstance(change.item, VirtualServer):
        raise TypeError(f"{change.item!r} is not a virtual server")
    old = change.old if isinstance(change.old, ServerSpec) else None
    new = change.new if isinstance(change.new, ServerSpec) else None
    return compile_change(change.item, old, new)


def _batch(changes: Sequence[Change], works: Sequence[Work]) -> Batch:
    size = sum(len(body) for work in works for body in work.bodies)
    return Batch(tuple(changes), tuple(works), size)


def _works(batch: Batch) -> tuple[Work, ...]:
    if not isinstance(batch.payload, tuple):
        raise TypeError("not a batch of this sink")
    return batch.payload


def _outcome(body: bytes, refusal: Refusal) -> tuple[int, int]:
    return (body[0], refusal.failure.errno)


def _words(server: VirtualServer, body: bytes, refusal: Refusal) -> str:
    what = f"virtual server {server}"
    if body[0] in (ipvs.NEW_DEST, ipvs.SET_DEST, ipvs.DEL_DEST):
        af = 10 if ":" in server.address else 2
        destination = ipvs.parse_destination(body, af)
        what += f": real server {destination.address} port {destination.port}"
    return str(kernel_error(refusal.failure.errno, what, refusal.failure.text))
