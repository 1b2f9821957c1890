"""Plans and fragments without a running proxy: manifests in, plans or rules out.

For the commands of `kpctl` that read files. The intake, pipeline and modes are the daemon's own, so
what is shown is what the daemon would do. The kernel is left to `apply`, the form to `planview`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kpctl.look.exits import USAGE
from kpctl.look.quiet import IgnoreEvents, IgnoreRounds, PlanOnlyBackend
from kpctl.look.reading import read_objects
from kubeproxy.api import objects
from kubeproxy.api.decode import decode_node_ips, decode_pod_cidrs
from kubeproxy.api.manifest_text import Key
from kubeproxy.api.source import Kind, Object, Synced, Upsert
from kubeproxy.config.command import Exit, Settings, parse_command_line, with_content
from kubeproxy.config.defaults import complete_platform
from kubeproxy.errors import ConfigError
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.go.text import format_os_error
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import AnyBackend, AnyMode
from kubeproxy.modes.registry import load_mode
from kubeproxy.plan.types import ServicePlan
from kubeproxy.run import startup
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.engine import Engine, EngineTimes
from kubeproxy.sync.intake import Intake
from kubeproxy.sync.pipeline import Pipeline

logger = get_logger(__name__)


class OfflineRequest(Struct, frozen=True):
    """Which objects, and as which proxy on which node: the arguments of an offline command.

    `addresses` are the host's; `main_addresses` are those by which others reach it, which count as
    the node's own if no Node object says which they are. With `main_addresses`, both are about this
    host: they are not used for a node of another name, unless `is_here`.
    """

    files: tuple[Path, ...]
    config: Path | None = None
    mode: str = ""
    node: str = ""
    addresses: tuple[str, ...] = ()
    main_addresses: tuple[str, ...] = ()
    is_here: bool = False
    """Is the node this host, whatever it is called?"""


def settings_for(request: OfflineRequest) -> Settings:
    """The settings the daemon would have. Raises ConfigError."""
    settings = parse_command_line(["--proxy-mode", request.mode] if request.mode else [])
    assert not isinstance(settings, Exit)
    if request.config is None:
        return settings
    try:
        content = request.config.read_bytes()  # once: it may be a pipe
    except OSError as error:
        raise ConfigError(f"open {request.config}: {format_os_error(error)}") from error
    try:
        settings = with_content(settings, content)
    except ConfigError as error:
        raise ConfigError(f"{request.config}: {error}") from error
    for note in settings.early:
        if note.values:
            logger.info(note.message, **note.values)
    if not request.mode:
        return settings
    config = complete_platform(replace(settings.config, mode=request.mode))
    return replace(settings, config=config)


def this_host() -> str:
    """The name of this host as a node."""
    return socket.gethostname().lower()


def choose_node(wanted: str, known: Mapping[Key, Object]) -> tuple[str, objects.Node | None]:
    """The node to look from: the wanted one, else the only one there is, else this host."""
    nodes = {key[2]: item for key, item in known.items() if isinstance(item, objects.Node)}
    if not wanted:
        wanted = next(iter(nodes)) if len(nodes) == 1 else this_host()
    return wanted, nodes.get(wanted)


def known_nodes(known: Mapping[Key, Object]) -> frozenset[str]:
    """The names of nodes that the objects mention, and this host."""
    names = {this_host()}
    for item in known.values():
        if isinstance(item, objects.Node):
            names.add(item.metadata.name)
        elif isinstance(item, objects.EndpointSlice):
            names |= {e.node_name for e in item.endpoints or () if e.node_name}
    return frozenset(names)


def node_facts_by_family(
    settings: Settings,
    name: str,
    node: objects.Node | None,
    addresses: Sequence[str],
    main_addresses: Sequence[str] = (),
) -> Mapping[Family, NodeFacts]:
    """Both families' view of the node."""
    config = settings.config
    node_ips = decode_node_ips(node) if node else main_addresses
    pod_cidrs = decode_pod_cidrs(node) if node else ()
    identity = startup.identify_node(node_ips, config.bind_address)
    expanded = startup.expand_node_port_addresses(config.node_port_addresses, identity)
    known = sorted({*addresses, *node_ips})
    mode = load_mode(config.mode)
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
                limits=startup.limits_of(settings.extensions),
                mode=mode,
            ),
            addresses=tuple(a for a in known if family_of(a) is family),
        )
        for family in Family
    }


class Evaluation(Struct, frozen=True):
    """The state a proxy would reach, per family.

    `rejected` counts objects that cannot be used, wholly or in part. `services` are the names of
    all Services in the files, as namespace/name. `nodes` are the names that are known.
    """

    node: str
    pipelines: Mapping[Family, Pipeline]
    settings: Settings
    rejected: int
    services: frozenset[str]
    nodes: frozenset[str]

    def plans(self) -> list[tuple[Family, ServicePlan]]:
        return [
            (family, plan)
            for family, pipeline in self.pipelines.items()
            for plan in sorted(pipeline.plans(), key=lambda p: p.id)
        ]


class UnknownNode(ConfigError):
    """Nothing is known of the node to look from."""

    exit_code = USAGE


def check_node(wanted: str, evaluation: Evaluation) -> None:
    """Raise UnknownNode if a node is wanted of which nothing is known."""
    if wanted and wanted not in evaluation.nodes:
        known = ", ".join(sorted(evaluation.nodes))
        raise UnknownNode(
            f"--node: no Node and no endpoint in the files is of the node {wanted!r}; known are"
            f" {known}"
        )


class Input(Struct, frozen=True):
    """Everything that was read: from it, engines can be made more than once."""

    settings: Settings
    objects: Mapping[Key, Object]
    rejected: int
    node: str
    node_facts: Mapping[Family, NodeFacts]
    noted: int = 0
    """How much in the files has no effect."""
    target_ports: Mapping[Key, Mapping[str, int]] = {}


def read_input(request: OfflineRequest, *, resolves_names: bool = True) -> Input:
    """Read files and configuration. Raises ConfigError."""
    settings = settings_for(request)
    reading = read_objects(request.files, resolves_names=resolves_names)
    name, node = choose_node(request.node, reading.objects)
    is_here = request.is_here or not request.main_addresses or name == this_host()
    own = request if is_here else replace(request, addresses=(), main_addresses=())
    facts = node_facts_by_family(settings, name, node, own.addresses, own.main_addresses)
    return Input(
        settings=settings,
        objects=reading.objects,
        rejected=reading.rejected,
        node=name,
        node_facts=facts,
        noted=reading.noted,
        target_ports=reading.target_ports,
    )


def build(
    request: OfflineRequest, mode: AnyMode | None, clock: Clock
) -> tuple[Mapping[Family, Engine], Evaluation]:
    """Build engines that hold all objects of the files and have not run yet."""
    return build_engines(read_input(request), mode, clock)


def build_engines(
    given: Input, mode: AnyMode | None, clock: Clock
) -> tuple[Mapping[Family, Engine], Evaluation]:
    """Build engines that hold all objects and have not run yet."""
    engines = {
        family: Engine(
            _backend(mode, family, given.settings),
            facts,
            clock=clock,
            listener=IgnoreRounds(),
            times=EngineTimes(min_seconds=0),
        )
        for family, facts in given.node_facts.items()
    }
    rejected = given.rejected + _feed(engines, given.node, given.objects, clock)
    return engines, Evaluation(
        node=given.node,
        pipelines={family: engine.pipeline for family, engine in engines.items()},
        settings=given.settings,
        rejected=rejected,
        services=frozenset(f"{key[1]}/{key[2]}" for key in given.objects if key[0] is Kind.SERVICE),
        nodes=known_nodes(given.objects),
    )


def _feed(
    engines: Mapping[Family, Engine], node: str, known: Mapping[Key, Object], clock: Clock
) -> int:
    """Deliver the objects to the engines. Return how many cannot be used."""
    events = IgnoreEvents()
    intake = Intake(engines, node, counters=events, node_listener=events, started_at=clock.time())
    rejected = 0
    for key, item in known.items():
        before = events.rejected
        intake.send(Upsert(key[0], item))
        rejected += events.rejected > before  # each family may count the same object
    for kind in Kind:
        intake.send(Synced(kind))
    return rejected


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
