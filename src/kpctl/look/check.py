"""Is everything in these files used? For people, and for whatever runs before files are installed.

What cannot be used is an error, what has no effect a note; both name the file and, where it is
known, the line. Nothing is looked up and nothing is changed: the answer depends on the files only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from kpctl.look.offline import Evaluation, OfflineRequest, build_engines, read_input
from kubeproxy.api.manifest_ports import unserved_targets
from kubeproxy.logs import get_logger
from kubeproxy.plan.claims import Claims
from kubeproxy.sync.clock import SystemClock

logger = get_logger(__name__)


class Checked(Struct, frozen=True):
    """What was found: usable Services, what is rejected, what has no effect."""

    services: int
    rejected: int
    noted: int


def check_files(files: tuple[Path, ...], mode: str = "") -> Checked:
    """Read and plan everything, and log each error and note. Raises ConfigError."""
    given = read_input(OfflineRequest(files=files, mode=mode), resolves_names=False)
    engines, evaluation = build_engines(given, None, SystemClock())
    for engine in engines.values():
        engine.pipeline.recompute()
    notes = dict.fromkeys(
        (*unserved_targets(given.objects, given.target_ports), *_notes(evaluation))
    )
    for note in notes:
        logger.info(note)
    return Checked(len(evaluation.services), evaluation.rejected, given.noted + len(notes))


def _notes(evaluation: Evaluation) -> Iterator[str]:
    """Yield what the plans have to say, what they refuse, and addresses that two Services claim."""
    claims = Claims()
    for _, plan in evaluation.plans():
        refused = (f"{one.what} is {one.reason}" for one in plan.excluded if one.is_refused)
        for note in (*plan.notes, *refused):
            yield f"Service {plan.id.namespace}/{plan.id.name}: {note}"
        for conflict in claims.replace((), (plan,)):
            yield (
                f"{conflict.place} is claimed by {conflict.winner} and {conflict.loser}; only the"
                " first is served there"
            )
