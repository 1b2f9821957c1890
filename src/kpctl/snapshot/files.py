"""A snapshot of what a proxy would do with these manifests; no daemon is asked."""

from __future__ import annotations

from msgspec.structs import replace

from kpctl.look.apply import supported_families
from kpctl.look.offline import (
    Input,
    OfflineRequest,
    build_engines,
    check_node,
    read_input,
    settings_for,
)
from kpctl.snapshot.types import Snapshot
from kubeproxy.errors import ConfigError
from kubeproxy.inspection.types import Held
from kubeproxy.modes.base import AnyMode
from kubeproxy.modes.registry import load_mode
from kubeproxy.sync.clock import SystemClock


def read_files(request: OfflineRequest) -> Snapshot:
    """Plan and render what the files hold. Raises ConfigError."""
    mode = load_mode(request.mode or settings_for(request).config.mode)
    return _snapshot(request, read_input(request), mode)


async def read_files_here(request: OfflineRequest) -> Snapshot:
    """The same, as a proxy on this host would have it, so that the kernel here can be compared.

    A family that the host does not support is left out. Raises ProxyError.
    """
    mode = load_mode(request.mode or settings_for(request).config.mode)
    if mode.name == "userspace":
        raise ConfigError(
            "in userspace mode rules lead to ports that a running proxy has chosen, so files say"
            " nothing about them; ask the proxy, without -f"
        )
    given = read_input(request)
    extensions = await mode.resolve(given.settings.extensions)
    given = replace(given, settings=replace(given.settings, extensions=extensions))
    families = await supported_families(mode, given.node_facts, given.settings)
    facts = {family: given.node_facts[family] for family in families}
    return _snapshot(request, replace(given, node_facts=facts), mode)


def _snapshot(request: OfflineRequest, given: Input, mode: AnyMode) -> Snapshot:
    engines, evaluation = build_engines(given, mode, SystemClock())
    check_node(request.node, evaluation)
    for engine in engines.values():
        engine.pipeline.recompute()
    held = {
        (family, name): Held(
            name=name,
            family=family,
            service=engine.pipeline.store.service(name),
            slices=engine.pipeline.store.slices(name),
        )
        for family, engine in engines.items()
        for name in engine.pipeline.store.known()
    }
    return Snapshot(
        origin=", ".join(map(str, request.files)),
        node=evaluation.node,
        settings=evaluation.settings,
        backends={family: engine.backend for family, engine in engines.items()},
        pipelines=evaluation.pipelines,
        held=held,
        rejected=evaluation.rejected,
    )
