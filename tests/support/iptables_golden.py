"""Captured cases of upstream's iptables mode: input, configuration, and what came of it.

A case becomes engines over the very intake and pipeline of the daemon, so that what the captures
are compared with is what a node would get.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import yaml
from msgspec.structs import replace

from kpctl.look.offline import OfflineRequest, build
from kubeproxy.api import objects
from kubeproxy.api.decode import decode_service, decode_slice, service_name
from kubeproxy.facts.ids import Family
from kubeproxy.modes.iptables.mode import MODE, IptablesBackend
from kubeproxy.modes.iptables.options import Features, Options
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.engine import Engine


class Host(msgspec.Struct, frozen=True, rename="camel"):
    """What the host of a case was like."""

    interface_addresses: tuple[str, ...]
    iptables_version: str
    random_fully: bool
    nfacct: bool


class CaseConfig(msgspec.Struct, frozen=True, rename="camel"):
    """`config.yaml` of a case."""

    description: str
    check: tuple[Family, ...]
    kube_proxy_config: dict[str, object]
    node: dict[str, object]
    host: Host


class GoldenCase(msgspec.Struct, frozen=True):
    """One captured case."""

    folder: Path
    config: CaseConfig

    @property
    def name(self) -> str:
        return self.folder.name

    def text(self, stem: str, family: Family = Family.IPV4) -> str:
        """A captured file: `restore`, `expected`, …"""
        suffix = "6" if family is Family.IPV6 else ""
        return (self.folder / f"{stem}{suffix}.txt").read_text()

    def metrics(self, stem: str = "metrics") -> Mapping[str, float]:
        """The captured metrics by their full name with labels."""
        lines = (self.folder / f"{stem}.txt").read_text().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def load_case(folder: Path) -> GoldenCase:
    raw = yaml.load((folder / "config.yaml").read_text(), yaml.CSafeLoader)
    return GoldenCase(folder, msgspec.convert(raw, CaseConfig))


def load_cases(root: Path) -> Sequence[GoldenCase]:
    return [load_case(path.parent) for path in sorted(root.glob("*/config.yaml"))]


def engines_of(
    case: GoldenCase, scratch: Path, clock: Clock, *, variant: str = ""
) -> Mapping[Family, Engine]:
    """Engines that hold the case's objects, not yet run."""
    request = OfflineRequest(
        files=tuple(_files(case, scratch)),
        config=_written(scratch / "config.yaml", case.config.kube_proxy_config),
        node=str(case.config.node["name"]),
        addresses=tuple(a.partition("/")[0] for a in case.config.host.interface_addresses),
    )

    def create(family: Family, options: Options) -> IptablesBackend:
        tools = replace(options.tools, variant=variant)
        return IptablesBackend(family, replace(options, tools=tools))

    mode = replace(MODE, create=create)
    engines, _ = build(request, mode, clock)
    for engine in engines.values():
        if isinstance(engine.backend, IptablesBackend):
            engine.backend.use_features(_features(case, engine.backend))
    return engines


def _features(case: GoldenCase, backend: IptablesBackend) -> Features:
    host = case.config.host
    return Features(
        has_random_fully=host.random_fully,
        has_invalid_counter=host.nfacct,
        has_localhost_counter=host.nfacct,
        is_tcp_liberal=backend.options.features.is_tcp_liberal,
    )


def _files(case: GoldenCase, scratch: Path) -> Iterator[Path]:
    yield case.folder / "input.yaml"
    node = case.config.node
    addresses = node.get("addresses", [])
    yield _written(
        scratch / "node.yaml",
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node["name"], "labels": node.get("labels", {})},
            "spec": {"podCIDRs": node.get("podCIDRs", [])},
            "status": {"addresses": addresses},
        },
    )


def _written(path: Path, content: object) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


class Step(msgspec.Struct, frozen=True):
    """One change of a captured sequence, and the stem of the files captured after it."""

    stem: str
    changes: Sequence[Mapping[str, object]]


def load_steps(case: GoldenCase) -> Sequence[Step]:
    return [
        Step(path.stem, yaml.load(path.read_text(), yaml.CSafeLoader)["changes"])
        for path in sorted(case.folder.glob("step-*.yaml"))
    ]


def take_step(engine: Engine, step: Step) -> None:
    """Hand the changes of a step to the engine."""
    for change in step.changes:
        if "node" in change:
            node = msgspec.convert({"metadata": change["node"]}, objects.Node)
            zone = (node.metadata.labels and node.metadata.labels.zone) or ""
            engine.set_node(replace(engine.pipeline.node, zone=zone))
        else:
            _take_object(engine, change["object"], is_deleted=change["event"] == "DELETED")


def _take_object(engine: Engine, raw: object, *, is_deleted: bool) -> None:
    store = engine.pipeline.store
    if isinstance(raw, dict) and raw["kind"] == "Service":
        service = msgspec.convert(raw, objects.Service)
        facts = decode_service(service, engine.family).facts
        if is_deleted or facts is None:
            store.delete_service(service_name(service))
        else:
            store.set_service(facts)
        return
    found = decode_slice(msgspec.convert(raw, objects.EndpointSlice), engine.pipeline.node.name)
    if is_deleted:
        store.delete_slice(found.facts.service.namespace, found.facts.name)
    else:
        store.set_slice(found.facts)
