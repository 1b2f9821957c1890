"""Runs inside a guest whose first process is systemd: the unit as an operator uses it.

The standard library is all there is: the guest's root is a plain Debian with our package.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kpctl.places.netns import enter_namespace

CLUSTER_IP, ENDPOINT = "10.96.0.10", "10.244.1.5"
UNIT = "kube-proxy.service"
PATIENCE_SECONDS = 900.0
"""An emulated machine beside other work."""
SERVICE = f"""
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{clusterIP: {CLUSTER_IP}, ports: [{{name: http, port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{{addresses: [{ENDPOINT}]}}]
"""


def serve(mode: str) -> object:
    """Start, ask, kill, let the watchdog act, restart and stop the unit. Return what was seen."""
    with Path("/proc/1/ns/net").open() as first:
        enter_namespace(first.fileno())
    _prepare(mode)
    seen: dict[str, object] = {"start": _systemctl("start")}
    if seen["start"]:
        return {**seen, "answer": False, "log": _log()}
    seen["answer"] = _until(_ask)
    seen["after start"] = _shown("ActiveState", "SubState", "Type", "NotifyAccess", "StatusText")
    before = _pid()
    os.kill(before, 9)
    seen["killed"] = _until(lambda: _pid() not in (0, before) and _is_active())
    seen["answer after the kill"] = _until(_ask)
    seen["watchdog"] = _stopped_and_restarted()
    seen["restart"] = _systemctl("restart")
    seen["answer after the restart"] = _until(_ask)
    seen["stop"] = _systemctl("stop")
    seen["answer after the stop"] = _ask()
    seen["after stop"] = _shown("ActiveState", "Result")
    return {**seen, "log": _log()}


def security() -> object:
    """The last line of systemd's own judgement of the unit."""
    return _run("systemd-analyze", "security", "--no-pager", UNIT).splitlines()[-1]


def _prepare(mode: str) -> None:
    """An endpoint on this host, and a configuration for the mode."""
    Path("/etc/kube-proxy/services.d/web.yaml").write_text(SERVICE)
    settings = Path("/etc/kube-proxy/config.yaml")
    settings.write_text(settings.read_text().replace("mode: nftables", f"mode: {mode}"))
    # The unit's own limit is for machines that are not emulated.
    folder = Path("/etc/systemd/system/kube-proxy.service.d")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "slow.conf").write_text("[Service]\nWatchdogSec=120s\nTimeoutStopSec=300s\n")
    _run("systemctl", "daemon-reload")
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "replace", f"{ENDPOINT}/32", "dev", "lo")
    _run("ip", "route", "replace", f"{CLUSTER_IP}/32", "dev", "lo", "src", ENDPOINT)
    listener = socket.create_server((ENDPOINT, 8080))
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()


def _answer(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"web-1")


def _ask() -> bool:
    try:
        with socket.create_connection((CLUSTER_IP, 80), timeout=10) as connection:
            return connection.recv(100) == b"web-1"
    except OSError:
        return False


def _stopped_and_restarted() -> bool:
    """Let the process stand still: the watchdog must end it, and systemd start another."""
    before = _pid()
    os.kill(before, 19)
    return _until(lambda: _pid() not in (0, before) and _is_active())


def _log() -> list[str]:
    text = _run("journalctl", "-u", UNIT, "-o", "cat", "-n", "200")
    return [line for line in text.splitlines() if "FLAG:" not in line][-60:]


def _systemctl(verb: str) -> str:
    done = subprocess.run(
        ["systemctl", verb, UNIT], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    return done.stdout + done.stderr


def _pid() -> int:
    return int(_shown("MainPID")["MainPID"])


def _is_active() -> bool:
    return _shown("ActiveState")["ActiveState"] == "active"


def _shown(*names: str) -> dict[str, str]:
    text = _run("systemctl", "show", UNIT, f"--property={','.join(names)}")
    return dict(line.split("=", 1) for line in text.splitlines())


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _until(is_done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if is_done():
            return True
        time.sleep(0.5)
    return False
