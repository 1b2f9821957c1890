"""Answers of the inspection API, computed from what the daemon holds when someone asks.

The cost of an answer is the size of what it shows. Services are shown page by page: a cursor holds
the names as they were when the first page was asked for, and each page is a bounded piece of work
in the loop that also syncs. What was created since is not in it, and what was removed is left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from kubeproxy.api.source import Source
from kubeproxy.config.command import Settings
from kubeproxy.config.write import config_document
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.inspection.journal import Journal
from kubeproxy.inspection.types import (
    CarriedConnections,
    Changes,
    Collection,
    FamilyStatus,
    Held,
    History,
    Page,
    Refused,
    Status,
)
from kubeproxy.status.health import ProxyHealth
from kubeproxy.sync.checks import HealthChecks
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.engine import Engine
from kubeproxy.version import PACKAGE_VERSION

PAGE_SIZE = 100
MOST_CURSORS = 16
"""How many people may page through all Services at once. The one who asked first is forgotten."""
MOST_REFUSED = 100
MOST_FLOWS = 1000
"""How many connections are shown one by one."""


class Pages:
    """Everything that can be asked for."""

    def __init__(
        self,
        settings: Settings,
        *,
        node_name: str,
        source: Source,
        engines: Mapping[Family, Engine],
        health: ProxyHealth,
        journal: Journal,
        clock: Clock,
        checks: HealthChecks | None = None,
    ) -> None:
        """`settings` are those that took effect: nothing in them is left to be found out."""
        self._settings = settings
        self._node_name = node_name
        self._source = source
        self._engines = engines
        self._health = health
        self._journal = journal
        self._clock = clock
        self._checks = checks
        self._started_at = clock.time()
        self._process = f"{os.getpid():x}-{round(self._started_at * 1000):x}"
        """Tells the marks of one run of the daemon from those of another."""
        self._cursors: dict[str, tuple[ServiceName, ...]] = {}
        self._cursor_count = 0

    def status(self) -> Status:
        rounds = self._journal.rounds()
        checker = self._checks.checker if self._checks else None
        return Status(
            version=PACKAGE_VERSION,
            kubernetes=self._settings.version,
            process=os.getpid(),
            started_at=self._started_at,
            now=self._clock.time(),
            node=self._node_name,
            mode=self._settings.config.mode,
            source=self._source.place,
            config=Raw(msgspec.json.encode(config_document(self._settings.config))),
            extensions=self._settings.extensions.texts(),
            families=tuple(map(self._family, self._engines.values())),
            collections=tuple(
                Collection(c.name, c.seen.value, c.seconds, c.problem)
                for c in self._source.collections()
            ),
            problems=self._journal.problems(),
            repairs=self._journal.repair_count,
            rounds=self._journal.round_count,
            last_round=rounds[-1] if rounds else None,
            checked=checker.targets if checker else 0,
            failing=checker.failing if checker else 0,
        )

    def _family(self, engine: Engine) -> FamilyStatus:
        pipeline = engine.pipeline
        health = self._health.health().families.get(engine.family)
        refusals = engine.refusals()
        return FamilyStatus(
            family=engine.family,
            node=pipeline.node,
            services=pipeline.service_total,
            service_ports=pipeline.service_port_total,
            endpoints=pipeline.endpoint_total,
            items=len(pipeline.ledger),
            queued=engine.service_changes_pending + engine.slice_changes_pending,
            is_healthy=health is None or health.is_healthy,
            last_sync_at=self._journal.last_success(engine.family),
            refused=tuple(Refused(str(r.owner or ""), r.message) for r in refusals[:MOST_REFUSED]),
            flows_owed=engine.flows_owed,
        )

    async def connections(self, most_flows: int) -> CarriedConnections:
        """Return what the mode itself carries. Raises KernelError."""
        found = {
            family: await engine.backend.carried(min(most_flows, MOST_FLOWS))
            for family, engine in self._engines.items()
        }
        return CarriedConnections({f: carried for f, carried in found.items() if carried})

    def history(self) -> History:
        journal = self._journal
        return History(journal.rounds(), journal.repairs(), journal.flow_searches())

    def changes(self, mark: str) -> Changes:
        """Return the Services that changed since a mark. One that means nothing here resets."""
        process, _, revision = mark.partition(".")
        now = f"{self._process}.{self._journal.revision}"
        is_ours = process == self._process and revision.isdecimal() and len(revision) < 20
        names = self._journal.changed_since(int(revision)) if is_ours else None
        return Changes(now, is_reset=True) if names is None else Changes(now, names)

    def service(self, name: ServiceName) -> tuple[Held, ...]:
        """Return one Service in every family that knows it."""
        return tuple(
            self._held(engine, name, _refused_by_service(engine).get(name, ()))
            for engine in self._engines.values()
            if _knows(engine, name)
        )

    def first_page(self) -> Page:
        """Return the first Services of all, and a cursor for the others."""
        names = {
            n: None for engine in self._engines.values() for n in engine.pipeline.store.known()
        }
        self._cursor_count += 1
        token = f"{self._cursor_count:x}"
        self._cursors[token] = tuple(names)
        while len(self._cursors) > MOST_CURSORS:
            del self._cursors[next(iter(self._cursors))]
        return self._page(token, 0)

    def page(self, cursor: str) -> Page | None:
        """Return the page of a cursor, or None if the cursor is not known any more."""
        token, _, start = cursor.partition(".")
        if token not in self._cursors or not start.isdecimal():
            return None
        return self._page(token, int(start))

    def _page(self, token: str, start: int) -> Page:
        names = self._cursors[token]
        end = start + PAGE_SIZE
        refused = {family: _refused_by_service(e) for family, e in self._engines.items()}
        changed = self._journal.services_with_endpoint_changes()
        items = tuple(
            self._held(engine, name, refused[family].get(name, ()), with_changes=name in changed)
            for name in names[start:end]
            for family, engine in self._engines.items()
            if _knows(engine, name)
        )
        if end >= len(names):
            del self._cursors[token]
            return Page(items)
        return Page(items, f"{token}.{end}")

    def _held(
        self,
        engine: Engine,
        name: ServiceName,
        refused: tuple[Refused, ...],
        *,
        with_changes: bool = True,
    ) -> Held:
        pipeline, family = engine.pipeline, engine.family
        changes = self._journal.endpoint_changes(family, name) if with_changes else ()
        return Held(
            name=name,
            family=family,
            service=pipeline.store.service(name),
            slices=pipeline.store.slices(name),
            failing=pipeline.store.failing(name),
            changed=self._journal.changed(name),
            endpoint_changes=changes,
            refused=refused,
            learned=_learned_of(engine, name),
        )


def _knows(engine: Engine, name: ServiceName) -> bool:
    store = engine.pipeline.store
    return store.service(name) is not None or store.has_slices(name)


def _refused_by_service(engine: Engine) -> dict[ServiceName | None, tuple[Refused, ...]]:
    found: dict[ServiceName | None, tuple[Refused, ...]] = {}
    for refusal in engine.refusals():
        refused = Refused(str(refusal.owner), refusal.message)
        found[refusal.service] = (*found.get(refusal.service, ()), refused)
    return found


def _learned_of(engine: Engine, name: ServiceName) -> Raw:
    learned = {
        str(plan.id): found
        for plan in engine.pipeline.plans_of(name)
        if (found := engine.backend.learned(plan, engine.node)) is not None
    }
    return Raw(msgspec.json.encode(learned))
