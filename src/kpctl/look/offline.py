"""Plans and fragments without a running proxy: manifests in, answers out. For `kpctl`.

Uses the very intake, pipeline and modes of the daemon, so what is shown is what would be done.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kubeproxy.api import objects
from kubeproxy.api.decode import decode_node_ips, decode_pod_cidrs
from kubeproxy.api.manifest_text import Key
from kubeproxy.api.manifests import ManifestSource
from kubeproxy.api.source import Kind, Object, Synced, Upsert
from kubeproxy.config.command import Exit, Settings, parse_command_line
from kubeproxy.errors import ConfigError
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import (
    AnyBackend,
    AnyFragment,
    AnyItem,
    AnyMode,
    AnySink,
    AnyValue,
    Backend,
    Owner,
)
from kubeproxy.plan.conntrack import StaleRules
from kubeproxy.plan.types import ServicePlan
from kubeproxy.run import startup
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.engine import Engine, EngineTimes
from kubeproxy.sync.intake import Intake
from kubeproxy.sync.pipeline import Pipeline
from kubeproxy.sync.report import RoundReport


class Question(Struct, frozen=True):
    """What a command was asked about."""

    files: tuple[Path, ...]
    config: Path | None = None
    mode: str = ""
    node: str = ""
    addresses: tuple[str, ...] = ()


def settings_for(question: Question) -> Settings:
    """The daemon's settings for this question."""
    argv = ["--config", str(question.config)] if question.config else []
    if question.mode and not question.config:
        argv += ["--proxy-mode", question.mode]
    parsed = parse_command_line(argv)
    if isinstance(parsed, Exit):
        raise ConfigError(parsed.stderr.strip().splitlines()[-1])
    if not question.mode:
        return parsed
    return replace(parsed, config=replace(parsed.config, mode=question.mode))


def load_objects(files: Iterable[Path]) -> Mapping[Key, Object]:
    """The objects of all files; an object of the same name in a later file is told, not used."""
    found: dict[Key, Object] = {}
    for path in files:
        for key, item in ManifestSource(path).load().items():
            found.setdefault(key, item)
    return found


def choose_node(wanted: str, known: Mapping[Key, Object]) -> tuple[str, objects.Node | None]:
    """The node to look from: the one asked for, the only one there is, or this host."""
    nodes = {key[2]: item for key, item in known.items() if isinstance(item, objects.Node)}
    if not wanted:
        wanted = next(iter(nodes)) if len(nodes) == 1 else socket.gethostname().lower()
    return wanted, nodes.get(wanted)


def families_nodes(
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
            addresses=tuple(a for a in known if (":" in a) == (family is Family.IPV6)),
        )
        for family in Family
    }


class Answer(Struct, frozen=True):
    """The state a proxy would reach, per family."""

    node: str
    pipelines: Mapping[Family, Pipeline]
    rejected: tuple[str, ...]

    def plans(self) -> list[tuple[Family, ServicePlan]]:
        return [
            (family, plan)
            for family, pipeline in self.pipelines.items()
            for plan in sorted(pipeline.plans(), key=lambda p: p.id)
        ]


class NoBackend(Backend[AnyItem, AnyValue, None]):
    """For looking at plans only."""

    @property
    def sinks(self) -> Sequence[AnySink]:
        return ()

    def scaffold(self, node: NodeFacts) -> AnyFragment:
        return {}

    def render(self, plan: ServicePlan, node: NodeFacts) -> AnyFragment:
        return {}

    def describe(self, fragments: Mapping[Owner, AnyFragment]) -> str:
        return ""


class _Silent:
    """Nobody listens; rejections are collected."""

    def __init__(self) -> None:
        self.rejected: list[str] = []

    def service_event(self, pending: int) -> None: ...

    def slice_event(self, pending: int) -> None: ...

    def object_rejected(self, kind: str) -> None:
        self.rejected.append(kind)

    def node_changed(self, node: objects.Node) -> None: ...

    def node_deleted(self) -> None: ...

    def sync_requested(self, family: Family) -> None: ...

    async def round_finished(self, report: RoundReport, pipeline: Pipeline) -> None: ...


async def _keep_flows(family: Family, rules: StaleRules) -> int:
    return 0


def build(
    question: Question, mode: AnyMode | None, clock: Clock
) -> tuple[Mapping[Family, Engine], Answer]:
    """Engines that hold everything the files say, not yet run."""
    settings = settings_for(question)
    known = load_objects(question.files)
    name, node = choose_node(question.node, known)
    nodes = families_nodes(settings, name, node, question.addresses)
    silent = _Silent()
    engines = {
        family: Engine(
            _backend(mode, family, settings),
            facts,
            clock=clock,
            listener=silent,
            clean_conntrack=_keep_flows,
            times=EngineTimes(min_seconds=0),
        )
        for family, facts in nodes.items()
    }
    intake = Intake(engines, name, counters=silent, node_listener=silent, started_at=clock.time())
    for key, item in known.items():
        intake.send(Upsert(key[0], item))
    for kind in Kind:
        intake.send(Synced(kind))
    pipelines = {family: engine.pipeline for family, engine in engines.items()}
    return engines, Answer(name, pipelines, tuple(silent.rejected))


def _backend(mode: AnyMode | None, family: Family, settings: Settings) -> AnyBackend:
    if mode is None:
        return NoBackend(family, None)
    return mode.create(family, mode.options(settings.config, settings.extensions))


def answer(question: Question, mode: AnyMode | None, clock: Clock) -> Answer:
    """Everything planned and rendered; the kernel is not touched."""
    _, found = build(question, mode, clock)
    for pipeline in found.pipelines.values():
        pipeline.recompute()
    return found


def render_text(question: Question, mode: AnyMode, clock: Clock) -> str:
    """What the mode would install, both families."""
    engines, found = build(question, mode, clock)
    parts = []
    for engine in engines.values():
        engine.pipeline.recompute()
        parts.append(engine.backend.describe(found.pipelines[engine.family].fragments()))
    return "".join(parts)
