"""A sample application in the cluster: a Deployment of web servers and Services in front of it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from kpctl.kubernetes.cluster import Cluster
from kpctl.kubernetes.images import AGNHOST
from kpctl.kubernetes.load import Client
from kpctl.kubernetes.objects import Json, as_list
from kpctl.places.netns import inside_namespace
from kubeproxy.errors import KernelError

WEB = "web"
NODE_PORT = 30080
_PORTS = [
    {"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"},
    {"name": "udp", "port": 81, "targetPort": 8081, "protocol": "UDP"},
]


def install_web(cluster: Cluster, *, replicas: int = 4) -> None:
    """Start the web servers and wait until they serve."""
    kubectl = cluster.control.kubectl
    kubectl("apply", "-f", "-", objects=as_list([web_deployment(replicas), *web_services()]))
    kubectl("rollout", "status", f"deployment/{WEB}", "--timeout=300s")


def web_deployment(replicas: int) -> Json:
    labels = {"app": WEB}
    container = {
        "name": "web",
        "image": AGNHOST,
        # A pod that ends goes on serving until every node has seen that, also on a busy machine:
        # a connection that fails is then the proxy's fault.
        "args": ["netexec", "--http-port=8080", "--udp-port=8081", "--delay-shutdown=20"],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": 8080},
            "periodSeconds": 1,
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": WEB},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def web_services() -> list[Json]:
    """One Service of each kind in front of the same pods."""
    http, udp = _PORTS
    on_node = {**http, "nodePort": NODE_PORT}
    return [
        _service(WEB, ports=[on_node, udp], type="NodePort", ipFamilyPolicy="RequireDualStack"),
        _service("headless", ports=[http], clusterIP="None"),
        _service("sticky", ports=[http], sessionAffinity="ClientIP"),
    ]


def _service(name: str, **spec: object) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": WEB}, **spec},
    }


def cluster_ips(cluster: Cluster, service: str) -> list[str]:
    found = cluster.control.kubectl("get", "service", service, "-o", "json")
    return [str(address) for address in json.loads(found)["spec"]["clusterIPs"]]


def web_pods(cluster: Cluster) -> list[dict[str, Any]]:
    """The web servers that are not about to end."""
    listed = json.loads(cluster.control.kubectl("get", "pods", f"-lapp={WEB}", "-o", "json"))
    return [p for p in listed["items"] if "deletionTimestamp" not in p["metadata"]]


def pod_network(cluster: Cluster, node: str, address: str) -> Path:
    """The network namespace of a pod, found by its address."""
    machine = next(n.machine for n in cluster.nodes if n.place.name == node)
    for path in Path(f"/proc/{machine.holder}/root/run/netns").iterdir():
        with inside_namespace(path), socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                continue
            return path
    raise KernelError(f"no pod of {node} has the address {address}")


def web_clients(cluster: Cluster) -> list[Client]:
    """Clients of every kind: outside, on each node, and in a pod."""
    ipv4, ipv6 = cluster_ips(cluster, WEB)
    pod = web_pods(cluster)[0]
    in_pod = pod_network(cluster, pod["spec"]["nodeName"], pod["status"]["podIP"])
    return [
        Client("a pod to the cluster IP", in_pod, ipv4, 80),
        Client("a pod to the IPv6 cluster IP", in_pod, ipv6, 80),
        *clients_outside_pods(cluster),
    ]


def clients_outside_pods(cluster: Cluster) -> list[Client]:
    """Clients that stay when pods are replaced."""
    ipv4, _ = cluster_ips(cluster, WEB)
    outside = cluster.control.machine.network
    clients: list[Client] = []
    for node in cluster.nodes:
        name, address = node.place.name, node.place.addresses[0]
        clients += [
            Client(f"outside to a node port of {name}", outside, address, NODE_PORT),
            Client(f"{name} to the cluster IP", node.machine.network, ipv4, 80),
        ]
    return clients
