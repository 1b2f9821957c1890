"""The story of a swap: upstream's kube-proxy to ours and back, under load, as an operator does it.

Each step is a command that was run, what it printed, and the connections that were tried and that
failed meanwhile.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence

import msgspec

from kpctl.kubernetes.cluster import OUR_PROXY, Cluster
from kpctl.kubernetes.images import UPSTREAM_PROXY
from kpctl.kubernetes.load import Counted, Load
from kpctl.kubernetes.workload import install_web, web_clients

SYSTEM = "--namespace=kube-system"
SHOW_PODS = (SYSTEM, "get", "pods", "-lk8s-app=kube-proxy", "-o=wide")
_ROLLOUT = (SYSTEM, "rollout", "status", "daemonset/kube-proxy", "--timeout=300s")


class Step(msgspec.Struct, frozen=True):
    """One thing that was done, its commands with their output, and the connections meanwhile."""

    title: str
    typed: tuple[tuple[str, str], ...]
    seconds: float
    connections: Counted


def run_swap(cluster: Cluster) -> list[Step]:
    """Swap ours in and go back, while clients of every kind open connections all the time."""
    install_web(cluster)
    with Load(web_clients(cluster)) as load:
        return [
            _step(cluster, load, "Before", [SHOW_PODS]),
            _step(cluster, load, "Swap", [set_image(OUR_PROXY), _ROLLOUT, SHOW_PODS]),
            _step(cluster, load, "The new program says who it is", [_wait_for_words(cluster)]),
            _step(cluster, load, "Roll back", [set_image(UPSTREAM_PROXY), _ROLLOUT, SHOW_PODS]),
        ]


def set_image(image: str) -> tuple[str, ...]:
    return (SYSTEM, "set", "image", "daemonset/kube-proxy", f"kube-proxy={image}")


def first_words() -> tuple[str, ...]:
    return (SYSTEM, "logs", "daemonset/kube-proxy", "--limit-bytes=200")


def _wait_for_words(cluster: Cluster) -> tuple[str, ...]:
    """The command that shows the first words of the proxy, once there are some."""
    while not cluster.control.kubectl(*first_words()):
        time.sleep(1)
    return first_words()


def _step(cluster: Cluster, load: Load, title: str, commands: Sequence[Sequence[str]]) -> Step:
    before, began = load.count(), time.monotonic()
    typed = [
        (shlex.join(["kubectl", *command]), cluster.control.kubectl(*command))
        for command in commands
    ]
    after = load.count()
    meanwhile = Counted(after.tried - before.tried, after.failures[before.failed :])
    return Step(title, tuple(typed), time.monotonic() - began, meanwhile)
