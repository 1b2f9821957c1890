"""One full sync: `kpctl apply` runs the daemon's engines for a single round."""

from __future__ import annotations

from kpctl.look.offline import OfflineRequest, build, settings_for
from kubeproxy.errors import Unsupported
from kubeproxy.modes.base import AnyMode
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.report import RoundReport


async def apply_once(request: OfflineRequest, mode: AnyMode, clock: Clock) -> list[RoundReport]:
    """Bring the current network namespace to what the files describe.

    A family that the host does not support is left out. Returns one report per family; raises
    Unsupported if the host supports neither.
    """
    settings = settings_for(request)
    options = mode.options(settings.config, settings.extensions)
    engines, _ = build(request, mode, clock)
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
