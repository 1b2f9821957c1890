"""Plans and fragments without a running proxy: manifests in, plans or rules out.

For the commands of `kpctl` that read files. The intake, pipeline and modes are the daemon's own, so
what is shown is what the daemon would do. The kernel is left to `apply`, the form to `planview`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kpctl.look.quiet import IgnoreEvents, IgnoreRounds, PlanOnlyBackend, keep_flows
from kubeproxy.api import objects
from kubeproxy.api.decode import decode_node_ips, decode_pod_cidrs
from kubeproxy.api.manifest_text import Key
from kubeproxy.api.manifests import ManifestSource
from kubeproxy.api.source import Kind, Object, Synced, Upsert
from kubeproxy.config.command import Exit, Settings, parse_command_line
from kubeproxy.errors import ConfigError
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import AnyBackend, AnyMode
from kubeproxy.plan.types import ServicePlan
from kubeproxy.run import startup
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.engine import Engine, EngineTimes
from kubeproxy.sync.intake import Intake
from kubeproxy.sync.pipeline import Pipeline


class OfflineRequest(Struct, frozen=True):
    """Which objects, and as which proxy on which node: the arguments of an offline command."""

    files: tuple[Path, ...]
    config: Path | None = None
    mode: str = ""
    node: str = ""
    addresses: tuple[str, ...] = ()


def settings_for(request: OfflineRequest) -> Settings:
    """The settings the daemon would have. Raises ConfigError."""
    argv = ["--config", str(request.config)] if request.config else []
    if request.mode and not request.config:
        argv += ["--proxy-mode", request.mode]
    parsed = parse_command_line(argv)
    if isinstance(parsed, Exit):
        raise ConfigError(parsed.stderr.strip().splitlines()[-1])
    if not request.mode:
        return parsed
    return replace(parsed, config=replace(parsed.config, mode=request.mode))


def load_objects(files: Iterable[Path]) -> Mapping[Key, Object]:
    """The objects of all files. Of two with the same name the one in the earlier file is used."""
    found: dict[Key, Object] = {}
    for path in files:
        for key, item in ManifestSource(path).load().items():
            found.setdefault(key, item)
    return found


def choose_node(wanted: str, known: Mapping[Key, Object]) -> tuple[str, objects.Node | None]:
    """The node to look from: the wanted one, else the only one there is, else this host."""
    nodes = {key[2]: item for key, item in known.items() if isinstance(item, objects.Node)}
    if not wanted:
        wanted = next(iter(nodes)) if len(nodes) == 1 else socket.gethostname().lower()
    return wanted, nodes.get(wanted)


def node_facts_by_family(
    settings: Settings, name: str, node: objects.Node | None, addresses: Sequence[str]
) -> Mapping[Family, NodeFacts]:
    """Both families' view of the node."""
    config = settings.config
    node_ips = decode_node_ips(node) if node else ()
    pod_cidrs = decode_pod_cidrs(node) if node else ()
    identity = startup.identify_node(node_ips, config.bind_address)
    expanded = startup.expand_node_port_addresses(config.node_port_addresses, identity)
    known = sorted({*addresses, *node_ips})
    return {
        family: replace(
            startup.node_facts(
                name,
                family,
                config=config,
                identity=identity,
                pod_cidrs=pod_cidrs,
                node_port_addresses=expanded,
                allows_external_ips=settings.gates.enabled("AllowServiceExternalIPs"),
            ),
            addresses=tuple(a for a in known if family_of(a) is family),
        )
        for family in Family
    }


class Evaluation(Struct, frozen=True):
    """The state a proxy would reach, per family."""

    node: str
    pipelines: Mapping[Family, Pipeline]

    def plans(self) -> list[tuple[Family, ServicePlan]]:
        return [
            (family, plan)
            for family, pipeline in self.pipelines.items()
            for plan in sorted(pipeline.plans(), key=lambda p: p.id)
        ]


def build(
    request: OfflineRequest, mode: AnyMode | None, clock: Clock
) -> tuple[Mapping[Family, Engine], Evaluation]:
    """Build engines that hold all objects of the files and have not run yet."""
    settings = settings_for(request)
    known = load_objects(request.files)
    name, node = choose_node(request.node, known)
    nodes = node_facts_by_family(settings, name, node, request.addresses)
    engines = {
        family: Engine(
            _backend(mode, family, settings),
            facts,
            clock=clock,
            listener=IgnoreRounds(),
            clean_conntrack=keep_flows,
            times=EngineTimes(min_seconds=0),
        )
        for family, facts in nodes.items()
    }
    events = IgnoreEvents()
    intake = Intake(engines, name, counters=events, node_listener=events, started_at=clock.time())
    for key, item in known.items():
        intake.send(Upsert(key[0], item))
    for kind in Kind:
        intake.send(Synced(kind))
    pipelines = {family: engine.pipeline for family, engine in engines.items()}
    return engines, Evaluation(name, pipelines)


def _backend(mode: AnyMode | None, family: Family, settings: Settings) -> AnyBackend:
    if mode is None:
        return PlanOnlyBackend(family, None)
    return mode.create(family, mode.options(settings.config, settings.extensions))


def evaluate(request: OfflineRequest, mode: AnyMode | None, clock: Clock) -> Evaluation:
    """Plan and render everything. The kernel is not touched."""
    _, evaluation = build(request, mode, clock)
    for pipeline in evaluation.pipelines.values():
        pipeline.recompute()
    return evaluation


def render_text(request: OfflineRequest, mode: AnyMode, clock: Clock) -> str:
    """The text of what the mode would install in both families."""
    engines, evaluation = build(request, mode, clock)
    parts = []
    for engine in engines.values():
        engine.pipeline.recompute()
        parts.append(engine.backend.describe(evaluation.pipelines[engine.family].fragments()))
    return "".join(parts)
