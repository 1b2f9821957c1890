"""Runs inside the user-mode kernel: the commands of kpctl beside a running proxy in ipvs mode.

One daemon serves for all of them, and the commands run in this process: in this slow kernel a
Python program takes seconds to start. Each moment of the story is a function that breaks something
and asks what commands show of it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from tests.support.confined import ip
from tests.support.objects_text import service_text, slice_text
from tests.support.waiting import FOR_THE_LOCK, LIMIT_SECONDS, wait_until

from kpctl.cli import main
from kubeproxy.kernel.ipvs.table import Ipvs
from kubeproxy.kernel.ipvs.wire import Service

FOLDER = Path("/run/commands")
SOCKET, MANIFESTS, BUNDLE = FOLDER / "sock", FOLDER / "manifests", FOLDER / "node.kpb"
NODE_IP = "192.0.2.7"
VIPS = {"IPv4": "10.96.0.10", "IPv6": "fd00:96::a"}
PODS = {"IPv4": "10.244.1.5", "IPv6": "fd00:244::5"}
EMPTY = "10.96.0.11"
WEB = (
    service_text(tuple(VIPS.values()), spec="type: NodePort")
    + slice_text(PODS["IPv4"])
    + slice_text(PODS["IPv6"], number=2)
)
MISNAMED = WEB.replace("{name: http, port: 8080}", "{name: www, port: 8080}")
FLAGS = (
    *("--proxy-mode=ipvs", "--hostname-override=worker-a", "--service-metrics=5", "-v=2"),
    *("--conntrack-max-per-core=0", "--oom-score-adj=0", "--ipvs-sync-period=1h"),
    f"--manifests={MANIFESTS}",
    f"--inspection-socket={SOCKET}",
)

Shown = tuple[int, str]
"""Exit code, and what was printed."""


def kpctl(*words: str) -> Shown:
    """Run one command on the proxy."""
    place = () if "--bundle" in words else ("--socket", str(SOCKET))
    done = CliRunner().invoke(main, [words[0], *place, *words[1:]])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def data(*words: str) -> Any:
    return json.loads(kpctl(*words, "-o", "json")[1])


def until(condition: Callable[[], object], what: str) -> None:
    wait_until(condition, lambda: f"{what} did not happen\n{(FOLDER / 'log').read_text()[-3000:]}")


def look_inside() -> dict[str, object]:
    """Everything, by moment and command."""
    MANIFESTS.mkdir(parents=True)
    with pods(), running() as daemon:
        until(lambda: SOCKET.exists() and kpctl("drift")[0] == 0, "programming")
        found: dict[str, object] = {
            "right": right(),
            "server": without_a_server(),
            "rule": without_a_rule(),
            "port name": with_a_wrong_port_name(),
            "forwarding": without_forwarding(),
        }
        daemon.kill()
        daemon.wait()
        found["offline"], found["gone"] = offline(), gone()
    return found


@contextmanager
def running() -> Iterator[subprocess.Popen[bytes]]:
    (MANIFESTS / "web.yaml").write_text(WEB)
    (MANIFESTS / "empty.yaml").write_text(service_text(EMPTY, "empty"))
    argv = [sys.executable, "-m", "kubeproxy", *FLAGS]
    with (FOLDER / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_SECONDS)


@contextmanager
def pods() -> Iterator[None]:
    """Endpoints on this host, of both families, that accept connections and keep them."""
    ip("link", "set", "lo", "up")
    ip("address", "replace", f"{NODE_IP}/32", "dev", "lo")
    ip("route", "replace", "default", "dev", "lo", "src", NODE_IP)
    ip("address", "replace", f"{PODS['IPv4']}/32", "dev", "lo")
    ip("-6", "address", "replace", f"{PODS['IPv6']}/128", "dev", "lo", "nodad")
    ip("-6", "route", "replace", "default", "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("1")
    four = socket.create_server((PODS["IPv4"], 8080), backlog=1000)
    six = socket.create_server((PODS["IPv6"], 8080), family=socket.AF_INET6, backlog=1000)
    with four, six:
        yield


@contextmanager
def connecting() -> Iterator[None]:
    """Connect to all Services again and again while the body runs."""
    ended = threading.Event()
    kept: list[socket.socket] = []

    def run() -> None:
        while not ended.wait(0.05):
            for address in (*VIPS.values(), EMPTY):
                with suppress(OSError):
                    kept.append(socket.create_connection((address, 80), timeout=1))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for each in kept:
            each.close()


def right() -> dict[str, object]:
    """What commands show of a proxy that is all right."""
    with connecting():
        until(lambda: data("connections", "shop/web"), "a connection")
        top: Any = None
        bundle: Shown = (0, "")

        def is_busy() -> bool:
            nonlocal top
            top = data("top", "-i", "3")
            rows = top["services"]
            new = sum(row["connectionsPerSecond"] > 0 for row in rows)
            return new >= len(VIPS) and any(row["rejectedPerSecond"] for row in rows)

        def is_bundled() -> bool:
            nonlocal bundle
            bundle = kpctl("bundle", str(BUNDLE), "-i", "3")
            return "has no endpoints" in kpctl("top", "--bundle", str(BUNDLE))[1]

        # In some seconds of a busy machine there may be no connection to one of them.
        until(is_busy, "connections to all")
        until(is_bundled, "connections to all in a bundle")
        connections = data("connections")
    return {
        "top": top,
        "bundle": bundle,
        "connections": connections,
        "status": data("status"),
        "status code": kpctl("status")[0],
        "get": data("get"),
        "explain": {vip: kpctl("explain", f"[{vip}]:80") for vip in VIPS.values()},
        "render": kpctl("render", "--service", "shop/web", "--no-scaffold"),
        "trace": {vip: kpctl("trace", "outside", f"[{vip}]:80") for vip in VIPS.values()},
        "refused": kpctl("trace", "outside", f"{EMPTY}:80"),
        "drift": kpctl("drift"),
        "doctor": data("doctor"),
    }


def without_a_server() -> dict[str, object]:
    """Virtual servers of both families are deleted, and nothing notices before the next sync."""
    held: list[Service] = []
    with Ipvs() as table:
        for service in table.services():
            if service.address in VIPS.values():
                held.append(service)
                table.delete(service)
    return {
        "deleted": sorted(service.address for service in held),
        "drift": kpctl("drift"),
        "trace": {vip: kpctl("trace", "outside", f"[{vip}]:80") for vip in VIPS.values()},
        "since": kpctl("drift", "--bundle", str(BUNDLE), "--now"),
    }


def without_a_rule() -> dict[str, object]:
    """A chain is emptied; the proxy notices, reads everything and repairs the servers as well."""
    for tool in ("iptables", "ip6tables"):
        subprocess.run([tool, *FOR_THE_LOCK, "-t", "nat", "-F", "KUBE-SERVICES"], check=True)
    until(lambda: kpctl("drift")[0] == 0, "the repair")
    return {"drift": data("drift"), "status": kpctl("status")}


def with_a_wrong_port_name() -> dict[str, object]:
    (MANIFESTS / "web.yaml").write_text(MISNAMED)
    until(lambda: kpctl("explain", "shop/web")[0] == 6, "the change")
    found: dict[str, object] = {
        "explain": kpctl("explain", "shop/web"),
        "get": kpctl("get", "shop/web"),
    }
    (MANIFESTS / "web.yaml").write_text(WEB)
    until(lambda: kpctl("explain", "shop/web")[0] == 0, "the correction")
    return found


def without_forwarding() -> dict[str, object]:
    switch = Path("/proc/sys/net/ipv4/ip_forward")
    switch.write_text("0")
    try:
        return {"doctor": kpctl("doctor")}
    finally:
        switch.write_text("1")


OFFLINE = {
    "status": ("status",),
    "get": ("get", "shop/web"),
    "explain": ("explain", "shop/web"),
    "render": ("render", "--service", "shop/web"),
    "trace": ("trace", "outside", "10.96.0.10:80"),
    "drift": ("drift", "-o", "wide"),
    "connections": ("connections", "shop/web"),
    "top": ("top",),
    "doctor": ("doctor",),
}


def offline() -> dict[str, Shown]:
    """The same from the file, after the proxy is gone."""
    return {name: kpctl(*words, "--bundle", str(BUNDLE)) for name, words in OFFLINE.items()}


def gone() -> dict[str, int]:
    """Exit codes without a proxy."""
    SOCKET.unlink()
    return {name: kpctl(*words)[0] for name, words in OFFLINE.items() if name != "doctor"}
