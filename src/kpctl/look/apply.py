"""One full sync: `kpctl apply` runs the daemon's engines for a single round.

Before it changes anything it reads the kernel and foresees what would change, so that a person can
look at it (`--dry-run`) or agree to it. The round itself starts from the beginning: it reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from kpctl.look.offline import Evaluation, Input, OfflineRequest, build_engines, read_input
from kpctl.look.removals import unnamed_services
from kubeproxy.config.command import Settings
from kubeproxy.errors import Unsupported
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyMode
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.edits import Edit, edits_of
from kubeproxy.sync.report import RoundReport


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
    families = await supported_families(mode, engines, evaluation.settings)
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


async def supported_families(
    mode: AnyMode, families: Iterable[Family], settings: Settings
) -> list[Family]:
    """The families in which the mode works here. Raises Unsupported if there is none."""
    options = mode.options(settings.config, settings.extensions)
    found: list[Family] = []
    refusals: list[str] = []
    for family in families:
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
        edits[family] = tuple(edits_of(engine.backend, changes, "not in these files"))
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


def diff_lines(outlook: Outlook) -> Iterator[str]:
    """The edits in the form of a diff; nothing if there is none."""
    for family, edits in outlook.edits.items():
        if edits:
            yield f"--- {family.value}, in the kernel now"
            yield f"+++ {family.value}, after apply"
        for edit in edits:
            yield f"@@ {edit.owner} @@"
            yield from edit.lines()
