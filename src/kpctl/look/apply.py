"""One full sync and out: `kpctl apply`. The daemon's engines, run for a single round."""

from __future__ import annotations

from kpctl.look.offline import Question, build, settings_for
from kubeproxy.errors import Unsupported
from kubeproxy.modes.base import AnyMode
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.report import RoundReport


async def apply_once(question: Question, mode: AnyMode, clock: Clock) -> list[RoundReport]:
    """Bring the current network namespace to what the files say; one report per family.

    A family the host cannot do is left out, unless neither can be done.
    """
    settings = settings_for(question)
    options = mode.options(settings.config, settings.extensions)
    engines, _ = build(question, mode, clock)
    reports: list[RoundReport] = []
    refusals: list[str] = []
    for family, engine in engines.items():
        try:
            await mode.check((family,), options)
            await engine.backend.start(engine.pipeline.node)
        except Unsupported as error:
            refusals.append(str(error))
            continue
        try:
            reports.append(await engine.round())
        finally:
            await engine.backend.close()
    if not reports:
        raise Unsupported("; ".join(dict.fromkeys(refusals)))
    return reports
