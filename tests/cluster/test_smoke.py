"""The smoke test of a real cluster: what an operator does on the first day."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.conftest import SECOND_IMAGE

from kpctl.kubernetes.cluster import OUR_PROXY, Cluster
from kpctl.kubernetes.images import UPSTREAM_PROXY
from kpctl.kubernetes.load import Load, ask
from kpctl.kubernetes.network import DOMAIN
from kpctl.kubernetes.swap import SYSTEM, first_words, set_image
from kpctl.kubernetes.workload import (
    NODE_PORT,
    clients_outside_pods,
    cluster_ips,
    pod_network,
    web_clients,
    web_pods,
)
from kpctl.places.netns import inside_namespace

pytestmark = pytest.mark.cluster
PATIENCE_SECONDS = 180.0
ENOUGH = 100


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:g} s: {what}"
        time.sleep(0.2)


def proxy_pods(cluster: Cluster) -> dict[str, dict[str, object]]:
    """The status of kube-proxy's container on each node."""
    words = (SYSTEM, "get", "pods", "-lk8s-app=kube-proxy", "-o", "json")
    items = json.loads(cluster.control.kubectl(*words))["items"]
    return {p["spec"]["nodeName"]: p["status"]["containerStatuses"][0] for p in items}


def roll_out(cluster: Cluster, image: str) -> None:
    cluster.control.kubectl(*set_image(image))
    cluster.wait_for_proxy()


def wait_for_traffic(load: Load) -> None:
    """Wait until some connections more have been tried than now."""
    enough = load.count().tried + ENOUGH
    wait_until(lambda: load.count().tried >= enough, "connections are tried")


def first_pod_network(cluster: Cluster) -> Path:
    pod = web_pods(cluster)[0]
    return pod_network(cluster, pod["spec"]["nodeName"], pod["status"]["podIP"])


def answers(network: Path, address: str, port: int, count: int = 40) -> set[str]:
    """The pods that answer a number of connections."""
    with inside_namespace(network):
        return {ask(address, port, "/hostname") for _ in range(count)}


def pod_names(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in web_pods(cluster)}


def test_the_image_runs_as_kubeadms_daemon_set(cluster: Cluster) -> None:
    """Every node runs it, it says who it is, and no pod had to be restarted."""
    pods = proxy_pods(cluster)
    assert set(pods) == {node.place.name for node in cluster.nodes}
    assert all(status["ready"] and status["restartCount"] == 0 for status in pods.values())
    wait_until(
        lambda: "kubeproxy" in cluster.control.kubectl(*first_words()), "its log says who it is"
    )


def test_a_service_answers_on_its_cluster_ips_and_node_ports(cluster: Cluster) -> None:
    """From a pod, from a node, and from outside, in both families."""
    names = pod_names(cluster)
    node = cluster.nodes[0]
    for address in cluster_ips(cluster, "web"):
        assert answers(first_pod_network(cluster), address, 80) == names
        assert answers(node.machine.network, address, 80) == names
    for address in node.place.addresses:
        assert answers(cluster.control.machine.network, address, NODE_PORT) == names


def test_session_affinity_keeps_a_client_with_its_pod(cluster: Cluster) -> None:
    (address, *_) = cluster_ips(cluster, "sticky")
    assert len(answers(first_pod_network(cluster), address, 80)) == 1


def test_a_headless_service_has_names_but_no_rules(cluster: Cluster) -> None:
    """Its name leads to the pods themselves."""
    pod = web_pods(cluster)[0]["metadata"]["name"]
    name = f"headless.default.svc.{DOMAIN}"
    found = cluster.control.kubectl("exec", pod, "--", "dig", "+short", name)
    assert set(found.split()) == {p["status"]["podIP"] for p in web_pods(cluster)}


def test_udp_is_answered(cluster: Cluster) -> None:
    (address, *_) = cluster_ips(cluster, "web")
    with inside_namespace(first_pod_network(cluster)):
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with client:
        client.settimeout(PATIENCE_SECONDS)
        client.sendto(b"hostname", (address, 81))
        assert client.recv(1000).decode() in pod_names(cluster)


def test_a_deployment_is_scaled_and_rolled_without_a_failed_connection(cluster: Cluster) -> None:
    """The Service follows its pods: first twice as many, then others."""
    address = cluster_ips(cluster, "web")[0]
    network = cluster.nodes[0].machine.network
    with Load(clients_outside_pods(cluster)) as load:
        for command in (("scale", "--replicas=8"), ("rollout", "restart")):
            cluster.control.kubectl(*command, "deployment/web")
            cluster.control.kubectl("rollout", "status", "deployment/web", "--timeout=300s")
            wait_until(
                lambda: answers(network, address, 80, 80) == pod_names(cluster),
                "connections reach all pods and no others",
            )
    assert load.count().failures == ()


def test_a_new_image_is_rolled_out_under_load(cluster: Cluster, load: Load) -> None:
    roll_out(cluster, SECOND_IMAGE)
    wait_for_traffic(load)
    assert {status["image"] for status in proxy_pods(cluster).values()} <= {
        SECOND_IMAGE,
        OUR_PROXY,
    }
    assert load.count().failures == ()


def test_a_proxy_that_is_killed_comes_back_and_no_connection_fails(
    cluster: Cluster, load: Load
) -> None:
    """SIGKILL of its process: the rules stay, and the kubelet starts it again."""
    node = cluster.nodes[0]
    before = proxy_pods(cluster)[node.place.name]
    os.kill(_proxy_process(cluster, node.place.name), signal.SIGKILL)

    def is_back() -> bool:
        now = proxy_pods(cluster)[node.place.name]
        return bool(now["ready"]) and now["restartCount"] != before["restartCount"]

    wait_until(is_back, "the proxy runs again")
    wait_for_traffic(load)
    assert load.count().failures == ()


def _proxy_process(cluster: Cluster, node: str) -> int:
    """The first process of kube-proxy's container on a node, by its number on the host."""
    status = proxy_pods(cluster)[node]
    container = str(status["containerID"]).rpartition("/")[2]
    lists = Path("/sys/fs/cgroup").glob(f"**/{container}/cgroup.procs")
    # The proxy starts tools that may have ended by now.
    pids = {int(pid) for path in lists for pid in path.read_text().split()}
    (first,) = (pid for pid in pids if _number_inside(pid) == 1)
    return first


def _number_inside(pid: int) -> int:
    """The number by which its own container knows a process. 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), 0)


def test_programs_are_swapped_there_and_back_under_load(cluster: Cluster) -> None:
    """upstream, ours, upstream by `kubectl set image`: no connection of any client fails."""
    roll_out(cluster, UPSTREAM_PROXY)
    with Load(web_clients(cluster)) as load:
        wait_for_traffic(load)
        roll_out(cluster, OUR_PROXY)
        wait_for_traffic(load)
        roll_out(cluster, UPSTREAM_PROXY)
        wait_for_traffic(load)
    assert load.count().failures == ()
