"""What the dashboard shows of one proxy, and what of it changed since a page last asked.

Every change has a revision. A page asks with the revision it has and gets the rows that are newer,
or all of them if it has none: several pages may look at one board. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from kpctl.dashboard.details import Document, service_document
from kpctl.dashboard.overview import history_document, overview_document
from kpctl.dashboard.rows import Known, Row, refused_names, row
from kpctl.look.planview import NodePorts
from kpctl.snapshot.live import hold
from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.inspection.types import Held, History, Status


class Answer(Struct, frozen=True, rename="camel"):
    """What a page is given: all rows (`is_reset`) or the changed ones, and the proxy as a whole.

    `history` is left out unless it differs from the one of `history_mark`.
    """

    revision: int
    is_live: bool
    is_reset: bool
    rows: Collection[Row]
    removed: Collection[ServiceName]
    status: Document
    history_mark: str
    history: Document | UnsetType = UNSET
    problem: str = ""


class Board:
    """One proxy. `load` and `update` keep it current."""

    def __init__(self, snapshot: Snapshot, *, is_live: bool) -> None:
        self._is_live = is_live
        self._revision = 0
        self.problem = ""
        """Why the proxy cannot be asked any more; empty while it answers."""
        self.load(snapshot)

    def load(self, snapshot: Snapshot) -> None:
        """Show this snapshot from now on."""
        self.snapshot = snapshot
        self._held = dict(snapshot.held)
        nodes = [pipeline.node for pipeline in snapshot.pipelines.values()]
        self._node_ports = NodePorts.of(snapshot.settings, nodes)
        self._refused = _refused(snapshot.status)
        self._rows = {name: self._row(name) for name in snapshot.names()}
        self._revision += 1
        self._loaded_at = self._revision
        self._changed: dict[ServiceName, int] = {}

    def update(
        self,
        status: Status,
        history: History | None,
        services: Mapping[ServiceName, tuple[Held, ...]],
    ) -> None:
        """Take over what a daemon answered: its status, and the Services that changed."""
        for name, held in services.items():
            self._hold(name, {each.family: each for each in held})
        for pipeline in self.snapshot.pipelines.values():
            pipeline.recompute()
        history = history or self.snapshot.history
        self.snapshot = replace(self.snapshot, status=status, history=history)
        refused = _refused(status)
        touched = services.keys() | (refused ^ self._refused)
        self._refused = refused
        for name in touched:
            self._refresh(name)

    def _hold(self, name: ServiceName, held: Mapping[Family, Held]) -> None:
        for family, pipeline in self.snapshot.pipelines.items():
            found = held.get(family)
            hold(pipeline, name, found)
            self._held.pop((family, name), None)
            if found is not None:
                self._held[family, name] = found

    def _refresh(self, name: ServiceName) -> None:
        self._rows.pop(name, None)
        if self._known(name):
            self._rows[name] = self._row(name)
        self._revision += 1
        self._changed[name] = self._revision

    def _row(self, name: ServiceName) -> Row:
        return row(name, self._known(name), is_refused=name in self._refused)

    def _known(self, name: ServiceName) -> Known:
        return {
            family: (held, pipeline.plans_of(name))
            for family, pipeline in self.snapshot.pipelines.items()
            if (held := self._held.get((family, name))) is not None
        }

    # --- what a page asks ---

    def answer(self, since: int, history_mark: str) -> Answer:
        """Return what is newer than a page's revision. Revision 0 has nothing."""
        is_reset = not self._loaded_at <= since <= self._revision
        names = [name for name, revision in self._changed.items() if revision > since]
        rows = self._rows.values() if is_reset else self._existing(names)
        mark, history = self._history_mark(), self.snapshot.history
        is_news = history is not None and mark != history_mark
        return Answer(
            revision=self._revision,
            is_live=self._is_live,
            is_reset=is_reset,
            rows=tuple(rows),
            removed=() if is_reset else tuple(n for n in names if n not in self._rows),
            status=overview_document(self.snapshot),
            history_mark=mark,
            history=history_document(history) if history is not None and is_news else UNSET,
            problem=self.problem,
        )

    def _existing(self, names: Collection[ServiceName]) -> Iterator[Row]:
        return (self._rows[name] for name in names if name in self._rows)

    def _history_mark(self) -> str:
        status = self.snapshot.status
        if status is None:
            return ""
        return f"{status.process}.{status.rounds}.{status.repairs}"

    def service(self, name: ServiceName) -> list[Document]:
        """Return one Service in every family that knows it."""
        return service_document(self._known(name), self._node_ports)

    def with_endpoint(self, address: str) -> list[ServiceName]:
        """Return the Services with an endpoint whose address begins like this."""
        found = {
            name: None
            for (_, name), held in self._held.items()
            if any(
                endpoint.text.lstrip("[").startswith(address)
                for facts in held.slices
                for _, endpoints in facts.endpoints
                for endpoint in endpoints
            )
        }
        return list(found)


def _refused(status: Status | None) -> frozenset[ServiceName]:
    families = status.families if status else ()
    return refused_names(refused.what for each in families for refused in each.refused)
