"""A snapshot of a running daemon, or of one that was written down: from the answers of its API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from kpctl.snapshot.client import Client, find_socket
from kpctl.snapshot.types import Snapshot
from kubeproxy.config.command import Exit, Settings, parse_command_line, with_content
from kubeproxy.config.flags import Extensions
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.inspection.types import Held, History, Status
from kubeproxy.modes.base import AnyBackend
from kubeproxy.modes.registry import load_mode
from kubeproxy.sync.pipeline import Pipeline


def read_live(socket: Path | None, only: ServiceName | None = None) -> Snapshot:
    """Ask the daemon at the socket; with `only`, for one Service. Raises ProxyError."""
    client = Client(find_socket(socket))
    try:
        status, history = client.status(), client.history()
        held = client.service(only) if only else client.services()
        origin = f"kube-proxy on node {status.node}"
        return snapshot_of(origin, status, history, held, is_partial=only is not None, is_here=True)
    finally:
        client.close()


def snapshot_of(
    origin: str,
    status: Status,
    history: History,
    held: Iterable[Held],
    *,
    is_partial: bool = False,
    is_here: bool = False,
) -> Snapshot:
    """Compute plans and items from a daemon's answers, as the daemon did.

    Where the daemon runs (`is_here`), its tools and kernel are probed, on which rules may depend.
    """
    backends = backends_of(status)
    if is_here:
        asyncio.run(_probe(backends.values()))
    pipelines = {
        each.family: Pipeline(backends[each.family], each.node, is_large=each.node.is_large_cluster)
        for each in status.families
    }
    found = {(each.family, each.name): each for each in held}
    _feed(pipelines, backends, found)
    return Snapshot(
        origin=origin,
        node=status.node,
        settings=settings_of(status),
        backends=backends,
        pipelines=pipelines,
        held=found,
        status=status,
        history=history,
        is_partial=is_partial,
    )


def backends_of(status: Status) -> dict[Family, AnyBackend]:
    """Return backends like the daemon's, which read the kernel of the current namespace."""
    settings = settings_of(status)
    mode = load_mode(status.mode)
    options = mode.options(settings.config, settings.extensions)
    return {each.family: mode.create(each.family, options) for each in status.families}


async def _probe(backends: Iterable[AnyBackend]) -> None:
    for backend in backends:
        await backend.probe()


def hold(pipeline: Pipeline, name: ServiceName, held: Held | None) -> None:
    """Hold one Service as the daemon holds it now; None if it knows it no more."""
    store = pipeline.store
    if held is not None and held.service is not None:
        store.set_service(held.service)
    else:
        store.delete_service(name)
    slices = held.slices if held is not None else ()
    for gone in {facts.name for facts in store.slices(name)} - {facts.name for facts in slices}:
        store.delete_slice(name.namespace, gone)
    for facts in slices:
        store.set_slice(facts)
    store.set_failing(name, held.failing if held is not None else {})


def settings_of(status: Status) -> Settings:
    """Return the settings that the daemon runs with."""
    flags = [f"--{name}={value}" for name, value in status.extensions.items() if value]
    settings = parse_command_line(flags)
    if isinstance(settings, Exit):
        raise ProxyError(
            f"the flags of kube-proxy {status.version} are not understood; use the kpctl that came"
            f" with it ({settings.stderr.strip()[-200:]})"
        )
    # Empty is also what a search on the host may have found, which no flag can say.
    empty = {name: value for name, value in status.extensions.items() if not value}
    extensions = Extensions({**settings.extensions.values, **empty})
    return replace(with_content(settings, bytes(status.config)), extensions=extensions)


def _feed(
    pipelines: Mapping[Family, Pipeline],
    backends: Mapping[Family, AnyBackend],
    held: Mapping[tuple[Family, ServiceName], Held],
) -> None:
    for (family, name), each in held.items():
        hold(pipelines[family], name, each)
    for family, pipeline in pipelines.items():
        pipeline.recompute()
        _assume(family, pipeline, backends[family], held)


def _assume(
    family: Family,
    pipeline: Pipeline,
    backend: AnyBackend,
    held: Mapping[tuple[Family, ServiceName], Held],
) -> None:
    """Render again what depends on something that the daemon has learned."""
    learned_plans = []
    for plan in pipeline.plans():
        found = held.get((family, plan.id.service))
        learned = _learned(found.learned).get(str(plan.id)) if found is not None else None
        if learned is not None:
            backend.assume(plan, pipeline.node, learned)
            learned_plans.append(plan.id)
    pipeline.rerender(learned_plans)


def _learned(data: Raw) -> Mapping[str, object]:
    return msgspec.json.decode(data, type=dict[str, object] | None) or {}
