"""Captured cases of upstream's ipvs mode: input, configuration, steps, and what came of them.

A case becomes engines over the very intake and pipeline of the daemon, so that what the captures
are compared with is what a node would get. Used on the host (rendering only) and inside a
user-mode kernel (the whole way).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import yaml

from kpctl.look.offline import OfflineRequest, node_facts_by_family, settings_for
from kpctl.look.quiet import IgnoreEvents, IgnoreRounds
from kubeproxy.api import objects
from kubeproxy.api.manifests import ManifestSource
from kubeproxy.api.source import Delete, Kind, Synced, Upsert
from kubeproxy.config.command import Settings
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family
from kubeproxy.modes.ipvs.mode import IpvsBackend
from kubeproxy.modes.ipvs.options import options_of
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.engine import Engine, EngineTimes
from kubeproxy.sync.intake import Intake


class Host(msgspec.Struct, frozen=True, rename="camel"):
    """What the host of a case was like before the proxy started."""

    interface_addresses: tuple[str, ...]
    initial: dict[str, object] = {}
    pods: tuple[dict[str, object], ...] = ()


class CaseConfig(msgspec.Struct, frozen=True, rename="camel"):
    """`config.yaml` of a case."""

    description: str
    check: tuple[Family, ...]
    kube_proxy_config: dict[str, object]
    node: dict[str, object]
    host: Host


class Step(msgspec.Struct, frozen=True, rename="camel"):
    """`step-NN.yaml`: actions in order, then changes that arrive together."""

    note: str
    actions: tuple[dict[str, object], ...] = ()
    changes: tuple[dict[str, object], ...] = ()


class GoldenCase(msgspec.Struct, frozen=True):
    """One captured case."""

    folder: Path
    config: CaseConfig
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    def expected(self, stem: str, step: int = 0) -> str | None:
        """A captured file after a step; one that is missing is unchanged since before."""
        for number in range(step, 0, -1):
            path = self.folder / f"step-{number:02}.{stem}.txt"
            if path.exists():
                return path.read_text()
        path = self.folder / f"{stem}.txt"
        return path.read_text() if path.exists() else None


def load_case(folder: Path) -> GoldenCase:
    raw, *steps = (
        yaml.load(path.read_text(), yaml.CSafeLoader)
        for path in (folder / "config.yaml", *sorted(folder.glob("step-*.yaml")))
    )
    return GoldenCase(
        folder, msgspec.convert(raw, CaseConfig), tuple(msgspec.convert(s, Step) for s in steps)
    )


def case_names(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob("*/config.yaml"))


class GoldenProxy:
    """A proxy for one case: engines of the captured families, fed with its objects."""

    def __init__(self, case: GoldenCase, scratch: Path, clock: Clock) -> None:
        self._case = case
        self._scratch = scratch
        self.clock = clock
        self._config = dict(case.config.kube_proxy_config)
        self._objects = dict(ManifestSource(case.folder / "input.yaml").load())
        self._node = self._load_node(case.config.node)
        self.addresses = tuple(a.partition("/")[0] for a in case.config.host.interface_addresses)
        self.start()

    def start(self) -> None:
        """Start a fresh process with the present configuration and objects."""
        settings = self._settings()
        self.options = options_of(settings.config, settings.extensions)
        name = str(self._case.config.node["name"])
        views = node_facts_by_family(settings, name, self._node, self.addresses)
        # The other family holds what case `empty` has; running it in each case proves nothing new.
        nodes = {family: views[family] for family in self._case.config.check}
        self.backends = {family: IpvsBackend(family, self.options) for family in nodes}
        self.engines = {
            family: Engine(
                self.backends[family],
                facts,
                clock=self.clock,
                listener=IgnoreRounds(),
                times=EngineTimes(min_seconds=0),
            )
            for family, facts in nodes.items()
        }
        self._intake = Intake(
            self.engines,
            name,
            counters=IgnoreEvents(),
            node_listener=IgnoreEvents(),
            started_at=self.clock.time(),
        )
        self._intake.send(Upsert(Kind.NODE, self._node))
        for key, item in self._objects.items():
            self._intake.send(Upsert(key[0], item))
        for kind in Kind:
            self._intake.send(Synced(kind))

    def configure(self, overrides: Mapping[str, object]) -> None:
        """Merge these over the configuration of the next start."""
        for key, value in overrides.items():
            held = self._config.get(key)
            if isinstance(held, dict) and isinstance(value, dict):
                self._config[key] = {**held, **value}
            else:
                self._config[key] = value

    def change(self, changes: Iterable[Mapping[str, object]], *, is_running: bool = True) -> None:
        """Send watch events: objects that come, change or go."""
        for number, change in enumerate(changes):
            path = self._written(f"change-{number}.yaml", change["object"])
            for key, item in ManifestSource(path).load().items():
                self._apply(str(change["event"]), key, item, is_running)

    def _apply(self, event: str, key: tuple[Kind, str, str], item: object, running: bool) -> None:
        if event == "DELETED":
            self._objects.pop(key, None)
            if running:
                self._intake.send(Delete(*key))
            return
        assert isinstance(item, objects.Service | objects.EndpointSlice | objects.Node)
        self._objects[key] = item
        if running:
            self._intake.send(Upsert(key[0], item))

    def move_addresses(self, added: Iterable[str], removed: Iterable[str]) -> None:
        """Change the addresses of the host, as its monitor would report them."""
        bare = {a.partition("/")[0] for a in removed}
        kept = {a for a in self.addresses if a not in bare}
        self.addresses = tuple(sorted(kept | {a.partition("/")[0] for a in added}))
        self._intake.addresses_changed(
            {
                family: tuple(a for a in self.addresses if family_of(a) is family)
                for family in Family
            }
        )

    def _settings(self) -> Settings:
        path = self._written("config.yaml", self._config)
        return settings_for(OfflineRequest(files=(), config=path))

    def _load_node(self, node: Mapping[str, object]) -> objects.Node:
        path = self._written(
            "node.yaml",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": node["name"], "labels": node.get("labels", {})},
                "spec": {"podCIDRs": node.get("podCIDRs", [])},
                "status": {"addresses": node.get("addresses", [])},
            },
        )
        (found,) = ManifestSource(path).load().values()
        assert isinstance(found, objects.Node)
        return found

    def _written(self, name: str, content: object) -> Path:
        path = self._scratch / name
        path.write_text(yaml.safe_dump(content))
        return path


def split_by_chain(restore: str) -> dict[tuple[str, str], list[str]]:
    """Restore input as rules by table and chain, in order."""
    found: dict[tuple[str, str], list[str]] = {}
    table = ""
    for line in restore.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":"):
            found[table, line[1:].partition(" ")[0]] = []
        elif line.startswith("-A "):
            found[table, line.split(" ")[1]].append(line)
    return found


def normalise_saved(text: str) -> Iterator[str]:
    """Lines of an iptables-save as the captures have them."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    free = [line for line in lines if line.startswith("-A KUBE-IPVS-OUT-FILTER")]
    ordered = iter(sorted(free))
    for line in lines:
        if line.startswith("-A KUBE-IPVS-OUT-FILTER"):
            yield next(ordered)
        elif line.startswith(":"):
            yield f"{line.rpartition(' ')[0]} [0:0]"
        else:
            yield line
