"""Objects that kubeadm makes in a new cluster, and those of the lab: what `kubectl apply` gets.

The proxy's are those of kubeadm v1.36 (ConfigMap, DaemonSet, ServiceAccount and its binding), with
another image.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from kpctl.kubernetes.network import CLUSTER_CIDRS, CONTROL, DNS_ADDRESSES, NodePlace

Json = dict[str, object]
_PROXY = {"name": "kube-proxy", "namespace": "kube-system"}
_SECRETS = "/var/run/secrets/kubernetes.io/serviceaccount"


def as_list(objects: Sequence[Json]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def node_object(place: NodePlace) -> Json:
    """A Node before its kubelet comes: in a zone, with addresses for its pods."""
    labels = {"topology.kubernetes.io/zone": place.zone}
    cidrs = list(place.pod_cidrs)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": place.name, "labels": labels},
        "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs},
    }


def dns_objects() -> list[Json]:
    """The Service of the name server, which runs outside the cluster's nodes."""
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    ports = [
        {"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol}
        for protocol in ("UDP", "TCP")
    ]
    service: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": DNS_ADDRESSES[0],
            "clusterIPs": list(DNS_ADDRESSES),
            "ipFamilyPolicy": "RequireDualStack",
            "ports": ports,
        },
    }
    slices: list[Json] = [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"kube-dns-{family.lower()}",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": family,
            "ports": ports,
            "endpoints": [{"addresses": [address]}],
        }
        for family, address in zip(("IPv4", "IPv6"), CONTROL, strict=True)
    ]
    return [service, *slices]


def proxy_objects(mode: str, image: str, server: str) -> list[Json]:
    """kube-proxy as kubeadm installs it."""
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": dict(_PROXY)},
        _binding(),
        _config_map(mode, server),
        _daemon_set(image),
    ]


def _binding() -> Json:
    role = {"kind": "ClusterRole", "name": "system:node-proxier"}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "kubeadm:node-proxier"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", **role},
        "subjects": [{"kind": "ServiceAccount", **_PROXY}],
    }


def _config_map(mode: str, server: str) -> Json:
    configuration = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "clusterCIDR": CLUSTER_CIDRS,
        "clientConnection": {"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"},
        # Only the first network namespace of a kernel may change the size of its table.
        "conntrack": {"maxPerCore": 0, "min": 0},
    }
    user = {"tokenFile": f"{_SECRETS}/token"}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "default",
                "cluster": {"server": server, "certificate-authority": f"{_SECRETS}/ca.crt"},
            }
        ],
        "contexts": [
            {
                "name": "default",
                "context": {"cluster": "default", "namespace": "default", "user": "default"},
            }
        ],
        "current-context": "default",
        "users": [{"name": "default", "user": user}],
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**_PROXY, "labels": {"app": "kube-proxy"}},
        "data": {
            "config.conf": json.dumps(configuration, indent=2),
            "kubeconfig.conf": json.dumps(kubeconfig, indent=2),
        },
    }


def _daemon_set(image: str) -> Json:
    labels = {"k8s-app": "kube-proxy"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {**_PROXY, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "priorityClassName": "system-node-critical",
                    "hostNetwork": True,
                    "serviceAccountName": "kube-proxy",
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [_proxy_container(image)],
                    "volumes": [
                        {"name": "kube-proxy", "configMap": {"name": "kube-proxy"}},
                        _host_path("xtables-lock", "/run/xtables.lock", type="FileOrCreate"),
                        _host_path("lib-modules", "/lib/modules"),
                    ],
                },
            },
        },
    }


def _proxy_container(image: str) -> Json:
    node_name = {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return {
        "name": "kube-proxy",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [
            "/usr/local/bin/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
            "--hostname-override=$(NODE_NAME)",
        ],
        "securityContext": {"privileged": True},
        "env": [{"name": "NODE_NAME", **node_name}],
        "volumeMounts": [
            {"name": "kube-proxy", "mountPath": "/var/lib/kube-proxy"},
            {"name": "xtables-lock", "mountPath": "/run/xtables.lock", "readOnly": False},
            {"name": "lib-modules", "mountPath": "/lib/modules", "readOnly": True},
        ],
    }


def _host_path(name: str, path: str, **options: str) -> Json:
    return {"name": name, "hostPath": {"path": path, **options}}
