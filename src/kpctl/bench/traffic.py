"""Data plane: what a connection through a ClusterIP costs, against one straight to the pod.

A client in a namespace of its own connects through the node, where the proxy under test has its
rules. Times are those of `connect` itself: one round trip through the rules. Which service is
first, middle and last is read from the kernel where order matters (iptables), else it goes by name.
"""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import quantiles

import msgspec

from kpctl.bench.cluster import POD_PORT, SERVICE_PORT, cluster_ip, pod_ip
from kpctl.bench.machine import wait_until_idle
from kpctl.bench.records import DIRECT, Measurement, Size
from kpctl.bench.world import Site
from kubeproxy.errors import ProxyError

_HANG_UP = struct.pack("ii", 1, 0)
"""SO_LINGER: close at once with a reset, so that no local port stays behind in TIME_WAIT."""

_SERVICE_RULE = re.compile(r"^-A KUBE-SERVICES -d (10\.\d+\.\d+\.\d+)/32 ", re.M)
_CHUNK = bytes(1 << 18)
_IDLE_SECONDS = 10.0


class Effort(msgspec.Struct, frozen=True, gc=False):
    """How much traffic."""

    connects: int = 300
    seconds: float = 1.5
    timeout_seconds: float = 5.0


class Target(msgspec.Struct, frozen=True, gc=False):
    """Where to connect, with a label."""

    label: str
    address: str
    port: int


class Pods:
    """The process that answers for all pods of a site."""

    def __init__(self, site: Site) -> None:
        with site.pods.inside():
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL"),
                    *(sys.executable, "-m", "kpctl.bench.pod", str(POD_PORT)),
                ],
                stdout=subprocess.PIPE,
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"listening\n":
            raise ProxyError("the benchmark's pods did not start")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def measure_traffic(
    site: Site, *, mode: str, program: str, size: Size, effort: Effort
) -> list[Measurement]:
    """Measure connections and throughput. The caller's thread is busy meanwhile."""
    pods = Pods(site)
    try:
        targets = service_targets(site, mode, size)
        # A pod of a service that is not measured: conntrack still holds for a while that answers of
        # the others' pods belong to connections through the service.
        direct = Target(DIRECT, pod_ip(size.services // 3, 0), POD_PORT)
        with site.client.inside():
            found = [(program, *row) for t in targets for row in _connect_times(t, effort)]
            times = [(value, unit) for _, value, unit in _connect_times(direct, effort)]
            found += [
                (who, name, value, unit)
                for who, target in ((program, targets[1]), (DIRECT, direct))
                for name, value, unit in _rates(target, effort)
            ]
    finally:
        pods.close()
    # A direct connection has no first or last service, so it is recorded with each of them.
    found += [
        (DIRECT, f"connect, {target.label} service, {part}", *time_found)
        for target in targets
        for part, time_found in zip(("p50", "p99"), times, strict=True)
    ]
    return [Measurement(mode, name, size, who, value, unit) for who, name, value, unit in found]


def service_targets(site: Site, mode: str, size: Size) -> tuple[Target, ...]:
    """The first, middle and last service, in the order in which the kernel looks."""
    addresses: Sequence[str] = [cluster_ip(i) for i in range(size.services)]
    if mode == "iptables":
        known = set(addresses)
        addresses = [a for a in _SERVICE_RULE.findall(_saved_nat(site)) if a in known]
    chosen = (addresses[0], addresses[len(addresses) // 2], addresses[-1])
    labels = ("first", "middle", "last")
    return tuple(
        Target(label, address, SERVICE_PORT) for label, address in zip(labels, chosen, strict=True)
    )


def _saved_nat(site: Site) -> str:
    with site.node.inside():
        command = ["xtables-legacy-multi", "iptables-save", "-t", "nat"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _connect_times(target: Target, effort: Effort) -> list[tuple[str, float, str]]:
    for _ in range(20):
        _connect(target, effort).close()
    times = []
    for _ in range(effort.connects):
        began = time.perf_counter()
        opened = _connect(target, effort)
        times.append((time.perf_counter() - began) * 1e6)
        opened.close()
    cuts = quantiles(times, n=100)
    name = f"connect, {target.label} service"
    return [(f"{name}, p50", cuts[49], "µs"), (f"{name}, p99", cuts[98], "µs")]


def _rates(target: Target, effort: Effort) -> list[tuple[str, float, str]]:
    # The pods may still be busy with connections that came and went before.
    wait_until_idle(_IDLE_SECONDS)
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < effort.seconds:
        _connect(target, effort).close()
        count += 1
    wait_until_idle(_IDLE_SECONDS)
    return [
        ("connections one after another", count / passed, "connections/s"),
        ("throughput of one stream", _throughput(target, effort), "Gbit/s"),
    ]


def _throughput(target: Target, effort: Effort) -> float:
    with _connect(target, effort) as stream:
        sent, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < effort.seconds:
            sent += stream.send(_CHUNK)
    return sent * 8 / passed / 1e9


def _connect(target: Target, effort: Effort) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HANG_UP)
    opened.settimeout(effort.timeout_seconds)
    try:
        opened.connect((target.address, target.port))
    except OSError as error:
        opened.close()
        raise ProxyError(
            f"the {target.label} service ({target.address}) cannot be reached: {error}"
        ) from error
    return opened
