"""One full sync: `kpctl apply` runs the daemon's engines for a single round.

Before it changes anything it reads the kernel and foresees what would change, so that a person can
look at it (`--dry-run`) or agree to it. The round itself starts from the beginning: it reads again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from kpctl.look.offline import Evaluation, Input, OfflineRequest, build_engines, read_input
from kpctl.look.removals import unnamed_services
from kubeproxy.errors import Unsupported
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import SCAFFOLD, AnyBackend, AnyChange, AnyMode
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.report import RoundReport


class Edit(Struct, frozen=True):
    """What would change for one owner in one family."""

    owner: str
    removed: tuple[str, ...]
    added: tuple[str, ...]


class Outlook(Struct, frozen=True):
    """What an apply would do."""

    edits: Mapping[Family, tuple[Edit, ...]]
    unnamed: tuple[str, ...]
    """Services that it would remove although no file names them."""


async def apply_once(request: OfflineRequest, mode: AnyMode, clock: Clock) -> list[RoundReport]:
    """Bring the current network namespace to what the files describe, without asking.

    A family that the host does not support is left out. Returns one report per family; raises
    Unsupported if the host supports neither.
    """
    return await apply_input(read_input(request), mode, clock)


async def apply_input(
    given: Input,
    mode: AnyMode,
    clock: Clock,
    agree: Callable[[Outlook], bool] | None = None,
) -> list[RoundReport]:
    """Apply what was read. With `agree`, only if it returns True for what would be done."""
    extensions = await mode.resolve(given.settings.extensions)
    given = replace(given, settings=replace(given.settings, extensions=extensions))
    engines, evaluation = build_engines(given, mode, clock)
    families = await _supported(mode, engines, evaluation)
    if agree is not None and not agree(await foresee(given, mode, clock, families)):
        return []
    reports: list[RoundReport] = []
    refusals: list[str] = []
    for family in families:
        backend = engines[family].backend
        try:
            await backend.start(engines[family].node)
            reports.append(await engines[family].round())
        except Unsupported as error:
            refusals.append(str(error))
        finally:
            await backend.close()
    if not reports:
        raise Unsupported("; ".join(dict.fromkeys(refusals)))
    return reports


async def _supported(
    mode: AnyMode, engines: Mapping[Family, Engine], evaluation: Evaluation
) -> list[Family]:
    """The families in which the mode works here. Raises Unsupported if there is none."""
    settings = evaluation.settings
    options = mode.options(settings.config, settings.extensions)
    found: list[Family] = []
    refusals: list[str] = []
    for family in engines:
        try:
            await mode.check((family,), options)
            found.append(family)
        except Unsupported as error:
            refusals.append(str(error))
    if not found:
        raise Unsupported("; ".join(dict.fromkeys(refusals)))
    return found


async def foresee(given: Input, mode: AnyMode, clock: Clock, families: list[Family]) -> Outlook:
    """Read the kernel and compare. Changes nothing."""
    engines, evaluation = build_engines(given, mode, clock)
    edits: dict[Family, tuple[Edit, ...]] = {}
    for family in families:
        engine = engines[family]
        await engine.backend.probe()
        try:
            for sink in engine.backend.sinks:
                engine.pipeline.resync(sink, await sink.read())
        finally:
            await engine.backend.close()
        engine.pipeline.recompute()
        changes = engine.pipeline.ledger.difference()
        edits[family] = tuple(_edits(engine.backend, changes))
    removed = [line for found in edits.values() for edit in found for line in edit.removed]
    unnamed = unnamed_services(removed, evaluation.services, _places(evaluation))
    return Outlook(edits, tuple(unnamed))


def _places(evaluation: Evaluation) -> frozenset[str]:
    return frozenset(
        join_host_port(frontend.address, frontend.port)
        for _, plan in evaluation.plans()
        for frontend in plan.frontends
        if frontend.address
    )


def _edits(backend: AnyBackend, changes: list[AnyChange]) -> Iterator[Edit]:
    """Group by owner; the changes are in the order of owners."""
    grouped: dict[str, list[AnyChange]] = {}
    for change in changes:
        grouped.setdefault(_owner_text(change), []).append(change)
    for owner, found in grouped.items():
        before, after = _lines(backend, found, "old"), _lines(backend, found, "new")
        removed, added = Counter(before) - Counter(after), Counter(after) - Counter(before)
        if removed or added:
            yield Edit(owner, tuple(removed.elements()), tuple(added.elements()))


def _owner_text(change: AnyChange) -> str:
    if change.owner is None:
        return "not in these files"
    return "for all Services" if change.owner == SCAFFOLD else str(change.owner)


def _lines(backend: AnyBackend, changes: list[AnyChange], side: str) -> list[str]:
    """The lines of one side, in an order that does not depend on that of the changes."""
    values = ((change.item, getattr(change, side)) for change in changes)
    found = [backend.lines({item: value}) for item, value in values if value is not None]
    return [line for lines in sorted(map(list, found)) for line in lines]


def diff_lines(outlook: Outlook) -> Iterator[str]:
    """The edits in the form of a diff; nothing if there is none."""
    for family, edits in outlook.edits.items():
        if edits:
            yield f"--- {family.value}, in the kernel now"
            yield f"+++ {family.value}, after apply"
        for edit in edits:
            yield f"@@ {edit.owner} @@"
            yield from (f"- {line}" for line in edit.removed)
            yield from (f"+ {line}" for line in edit.added)
