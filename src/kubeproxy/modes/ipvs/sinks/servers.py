"""The sink for virtual servers and their real servers.

Messages are prepared by `compile.servers`, and what a refused one means is in `compile.refusals`.
Which virtual servers are ours is decided by `rules.ownership`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.errors import Drifted, Rejected
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipvs.wire import IPVS_CMD_NEW_SERVICE, Service
from kubeproxy.kernel.netlink.bulk import Refusal
from kubeproxy.kernel.netlink.socket import kernel_error
from kubeproxy.modes.base import Batch
from kubeproxy.modes.ipvs.compile.refusals import command_of, is_harmless, second_try, subject_of
from kubeproxy.modes.ipvs.compile.servers import (
    DRAINED,
    ServerChange,
    ServerPayload,
    ServerWork,
    compile_servers,
    format_delete,
    format_key,
    format_quiesce,
)
from kubeproxy.modes.ipvs.items import Place, RealServer, ServerSpec, VirtualServer
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.ipvs.rules.ownership import Exclusions, find_traces
from kubeproxy.modes.ipvs.sinks.addresses import bound_addresses
from kubeproxy.modes.ipvs.sinks.draining import Draining
from kubeproxy.modes.ipvs.sinks.sets import SetSink
from kubeproxy.modes.ipvs.sinks.tables import Tables

_READS_PER_TURN = 100
"""After so many listings other tasks get a turn: a full read of a big table takes a while."""


class ServerSink:
    """The virtual servers of one family.

    Not transactional: part of a rejected batch may be in the kernel. Every message is forgiving, so
    repeating a batch, whole or in part, is harmless.

    Beside the ledger the sink holds two things:

    - Which virtual servers this process has made (`_made`). `read` needs it to decide which of the
      kernel's servers are ours: inside an excluded network only these are. The ledger is reset to
      what `read` returns, so it cannot be asked. After a restart it is empty, and servers in
      excluded networks count as foreign, which is what excluding them means.
    - Which real servers are draining, since when, and until when at most (`draining`). No owner
      wants them any more, so to the ledger they are gone. If `read` showed them, the ledger would
      have them deleted, with their connections. After a restart they are found by their weight of
      0: no owner wants them with it, so they begin to drain again. Limits of Services are not
      known then: they differ from what is wanted, so that they are set, which sends nothing.
    """

    name = "ipvs"
    item_types: tuple[type, ...] = (VirtualServer,)
    is_transactional = False

    def __init__(self, tables: Tables, family: Family, sets: SetSink, options: Options) -> None:
        """`sets` has read its entries before this sink reads: sinks are read in order."""
        self.draining = Draining(options.drain_limit_seconds)
        self._tables = tables
        self._family = family
        self._sets = sets
        self._exclusions = Exclusions(family, options.exclude_cidrs)
        self._made: set[VirtualServer] = set()

    # --- reading ---

    async def read(self) -> Mapping[VirtualServer, ServerSpec]:
        found: dict[VirtualServer, ServerSpec] = {}
        for count, (server, service) in enumerate(self._ours()):
            if count % _READS_PER_TURN == 0:
                await asyncio.sleep(0)
            found[server] = self._spec(server, service)
        return found

    def _ours(self) -> list[tuple[VirtualServer, Service]]:
        bound = bound_addresses(self._tables.route, self._family)
        traces = find_traces(self._family, self._sets.last_read, bound)
        listed = [
            (VirtualServer(service.protocol, service.address, service.port), service)
            for service in self._tables.ipvs.services()
            if family_of(service.address) is self._family
        ]
        return [
            (server, service)
            for server, service in listed
            if server in self._made
            or (traces.include(server) and not self._exclusions.cover(server.address))
        ]

    def _spec(self, server: VirtualServer, service: Service) -> ServerSpec:
        draining = self.draining.places(server)
        present = (r for r in self._list(server) if r.place not in draining or r.weight)
        return ServerSpec(
            scheduler=service.scheduler,
            flags=service.flags,
            timeout_seconds=service.timeout_seconds,
            real_servers=tuple(sorted(present, key=lambda real: real.place)),
            drain_seconds=self.draining.limits.get(server),
        )

    def _list(self, server: VirtualServer) -> list[RealServer]:
        listed = self._tables.ipvs.destinations(server.protocol, server.address, server.port)
        return [RealServer(d.address, d.port, d.weight, d.forward) for d in listed]

    # --- changing ---

    def compile(self, changes: Sequence[ServerChange]) -> Iterator[Batch[ServerPayload]]:
        return compile_servers(changes)

    async def apply(self, batch: Batch[ServerPayload]) -> None:
        """Send the messages, then drain real servers that are no longer wanted.

        Raises Rejected with the messages that were refused, Drifted if a virtual server is gone.
        """
        works = batch.payload
        existing, problems = self._send(works)
        for work in works:
            self._settle(work, existed_already=work.server in existing)
        if problems:
            raise Rejected("; ".join(problems[:3]))

    def _send(self, works: Sequence[ServerWork]) -> tuple[set[VirtualServer], list[str]]:
        """Send all messages.

        Return the virtual servers that existed although they were believed absent, and what was
        refused, in words.
        """
        sent = [(work.server, body) for work in works for body in work.bodies]
        again: list[tuple[VirtualServer, bytes]] = []
        retries: list[bytes] = []
        failed: list[tuple[VirtualServer, bytes, Refusal]] = []
        for refusal in self._tables.ipvs.send([body for _, body in sent]):
            server, body = sent[refusal.place]
            retry = second_try(body, refusal.failure.errno)
            if retry is not None:
                again.append((server, body))
                retries.append(retry)
            elif not is_harmless(body, refusal.failure.errno):
                failed.append((server, body, refusal))
        failed += [(*again[r.place], r) for r in self._tables.ipvs.send(retries)]
        for server, _, refusal in failed:
            if refusal.failure.errno == errno.ESRCH:
                raise Drifted(f"virtual server {server} has vanished", errno=errno.ESRCH)
        existing = {server for server, body in again if command_of(body) == IPVS_CMD_NEW_SERVICE}
        return existing, [_problem(*failure) for failure in failed]

    def _settle(self, work: ServerWork, *, existed_already: bool) -> None:
        """Bring the sink's own state up to date after a change, and drain what is left over.

        A virtual server that was believed absent but existed may have real servers nothing wants.
        """
        server, spec = work.server, work.spec
        if spec is None:
            self._made.discard(server)
            self.draining.forget(server)
            return
        self._made.add(server)
        self.draining.set_limit(server, spec.drain_seconds)
        wanted = {real.place for real in spec.real_servers}
        self.draining.discard(server, wanted)
        present = self._list(server) if existed_already else ()
        surplus = [real for real in present if real.place not in wanted]
        self._remove(server, [real.place for real in (*work.leaving, *surplus)])

    def _remove(self, server: VirtualServer, places: Sequence[Place]) -> None:
        """Stop scheduling to these real servers. Delete the idle ones now, the others once idle."""
        if not places:
            return
        key = format_key(server)
        if server.protocol in DRAINED or server in self.draining.limits:
            # The weight goes first: no new connection can begin between the look and the deletion.
            self._tables.ipvs.send([format_quiesce(key, place) for place in places])
            self.draining.add(server, places)
            self._delete_idle(server, frozenset())
        else:
            self._tables.ipvs.send([format_delete(key, place) for place in places])

    # --- draining ---

    def drain(self, now: float) -> None:
        """Delete the real servers that have become idle, or have waited too long."""
        for server in self.draining.take_due(now):
            self._delete_idle(server, self.draining.expired(server, now))

    def _delete_idle(self, server: VirtualServer, expired: frozenset[Place]) -> None:
        listed = self._tables.ipvs.destinations(server.protocol, server.address, server.port)
        connections = {(d.address, d.port): d.connections for d in listed}
        waiting = tuple(self.draining.places(server))
        gone = [place for place in waiting if place not in connections]
        done = [p for p in waiting if connections.get(p) == 0 or (p in expired and p not in gone)]
        key = format_key(server)
        self._tables.ipvs.send([format_delete(key, place) for place in done])
        self.draining.discard(server, (*gone, *done))


def _problem(server: VirtualServer, body: bytes, refusal: Refusal) -> str:
    failure = refusal.failure
    return str(kernel_error(failure.errno, subject_of(server, body), failure.text))
