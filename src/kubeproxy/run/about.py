"""What the program shows of itself: build information and the pages of the metrics server."""

from __future__ import annotations

import os
import platform
import sys
import time

import msgspec

from kubeproxy.config.command import Settings
from kubeproxy.config.write import config_document
from kubeproxy.logs import set_verbosity
from kubeproxy.status.debug_pages import DebugPages
from kubeproxy.status.metrics import Metrics
from kubeproxy.status.metrics_server import Pages
from kubeproxy.status.zpages import RunningVersion


def build_info(version: str) -> dict[str, str]:
    """The labels of `kubernetes_build_info`; the runtime stands where Go's would."""
    major, minor, _ = version.removeprefix("v").split(".", 2)
    return {
        "major": major,
        "minor": minor,
        "git_version": version,
        "git_commit": "",
        "git_tree_state": "",
        "build_date": "1970-01-01T00:00:00Z",
        "go_version": runtime(),
        "compiler": sys.implementation.name,
        "platform": f"{sys.platform}/{os.uname().machine}",
    }


def runtime() -> str:
    return f"python{platform.python_version()}"


def pages(settings: Settings, metrics: Metrics) -> Pages:
    """Everything that the metrics server shows."""
    gates = settings.gates
    return Pages(
        metrics=metrics,
        config=msgspec.json.encode(config_document(settings.config)),
        flags=settings.flag_values if gates.enabled("ComponentFlagz") else None,
        version=_running_version(settings.version) if gates.enabled("ComponentStatusz") else None,
        debug=_debug_pages() if settings.config.enable_profiling else None,
    )


def _running_version(version: str) -> RunningVersion:
    return RunningVersion(
        started_ns=time.time_ns(),
        runtime=runtime(),
        binary=version.removeprefix("v"),
        emulation=".".join(version.removeprefix("v").split(".")[:2]),
    )


def _debug_pages() -> DebugPages:
    return DebugPages(command_line=sys.argv, set_verbosity=set_verbosity)
