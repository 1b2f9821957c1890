"""What the program shows of itself: what it serves, its build, the metrics server's pages."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from kubeproxy.config.command import Settings
from kubeproxy.config.kinds import STRINGS
from kubeproxy.config.write import config_document
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.logs import set_verbosity
from kubeproxy.run.startup import PRIMARY, NodeIdentity, expand_node_port_addresses
from kubeproxy.status.metrics import Metrics
from kubeproxy.status.metrics_server import Pages
from kubeproxy.status.zpages import RunningVersion
from kubeproxy.sync.pipeline import Pipeline
from kubeproxy.version import COMMIT, DISTRIBUTION, TREE_STATE, go_platform

if TYPE_CHECKING:
    from kubeproxy.status.debug_pages import DebugPages


def service_summary(settings: Settings, pipelines: Mapping[Family, Pipeline]) -> dict[str, object]:
    """What is served, and where: the values of the log line after the first sync."""
    config = settings.config
    plans = [plan for pipeline in pipelines.values() for plan in pipeline.plans()]
    nodes = [pipeline.node for pipeline in pipelines.values()]
    return {
        "mode": config.mode,
        "ipFamilies": [family.value for family in pipelines],
        "services": len({plan.id.service for plan in plans}),
        "servicePorts": len(plans),
        "endpoints": sum(plan.endpoint_count for plan in plans),
        "nodePortAddresses": [text for node in nodes for text in node_port_places(node)],
        "healthz": config.healthz_bind_address or "disabled",
        "metrics": config.metrics_bind_address or "disabled",
    }


def node_port_places(node: NodeFacts) -> tuple[str, ...]:
    """Where node ports are served: `all IPv4 addresses`, or the addresses one by one."""
    if node.node_ports_match_all:
        return (f"all {node.family.value} addresses",)
    return node.node_port_addresses


def build_info(version: str) -> dict[str, str]:
    """The labels of `kubernetes_build_info`; the runtime stands where Go's would."""
    major, minor, _ = version.removeprefix("v").split(".", 2)
    return {
        "major": major,
        "minor": minor,
        "git_version": version,
        "git_commit": COMMIT,
        "git_tree_state": TREE_STATE,
        "build_date": "1970-01-01T00:00:00Z",
        "go_version": runtime(),
        "compiler": sys.implementation.name,
        "platform": go_platform(sys.platform, os.uname().machine),
    }


def runtime() -> str:
    return f"python{platform.python_version()}"


def pages(
    settings: Settings, metrics: Metrics, identity: NodeIdentity, is_waiting: Callable[[], bool]
) -> Pages:
    """Everything that the metrics server shows."""
    gates = settings.gates
    return Pages(
        metrics=metrics,
        config=msgspec.json.encode(config_document(settings.config)),
        flags=_flag_values(settings, identity) if gates.enabled("ComponentFlagz") else None,
        version=_running_version(settings.version) if gates.enabled("ComponentStatusz") else None,
        debug=_debug_pages() if settings.config.enable_profiling else None,
        is_waiting=is_waiting,
    )


def _flag_values(settings: Settings, identity: NodeIdentity) -> Mapping[str, str]:
    """The flags as they took effect: upstream completes the values in their place."""
    configured = settings.config.node_port_addresses
    if settings.config_file or configured is None or list(configured) != [PRIMARY]:
        return settings.flag_values
    addresses = expand_node_port_addresses(configured, identity)
    return {**settings.flag_values, "nodeport-addresses": STRINGS.format(addresses)}


def _running_version(version: str) -> RunningVersion:
    return RunningVersion(
        started_ns=time.time_ns(),
        runtime=runtime(),
        binary=version.removeprefix("v"),
        emulation=".".join(version.removeprefix("v").split(".")[:2]),
        distribution=DISTRIBUTION,
    )


def _debug_pages() -> DebugPages:
    # Profilers are not imported where profiling is off, which is the default.
    from kubeproxy.status.debug_pages import DebugPages

    return DebugPages(command_line=sys.argv, set_verbosity=set_verbosity)
