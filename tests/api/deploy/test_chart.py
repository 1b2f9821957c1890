"""deploy/chart: linted, rendered with several sets of values, and accepted by a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.helm import CHART, Helm
from tests.support.kubectl import Kubectl, Tree, differences
from tests.support.waiting import LIMIT_SECONDS

from kpctl.apiserver.build import NoGo
from kpctl.apiserver.real import RealApiServer
from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.modes.registry import mode_names
from kubeproxy.run.privileges import NEEDS
from kubeproxy.version import PACKAGE_VERSION

pytestmark = [pytest.mark.api, pytest.mark.timeout(1800)]

BASE = CHART.parent / "base"
SERVER: Tree = {"apiServer": "https://192.0.2.1:6443"}
EVERYTHING: Tree = {
    "apiServer": "https://[2001:db8::1]:6443",
    "mode": "ipvs",
    "clusterCIDRs": ["10.244.0.0/16", "fd00:244::/56"],
    "config": {
        "ipvs": {"scheduler": "lc", "strictARP": True},
        "healthzBindAddress": "[::]:11256",
        "metricsBindAddress": "[::1]:11249",
    },
    "extraArgs": ["--v=4"],
    "image": {
        "repository": "registry.example/net/kubeproxy",
        "tag": "x",
        "pullSecrets": [{"name": "s"}],
    },
    "resources": {"limits": {"memory": "256Mi"}},
    "priorityClassName": "",
    "tolerations": [],
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "probes": {"liveness": {"failureThreshold": 2}, "readiness": None},
    "security": {"extraCapabilities": ["SYS_RESOURCE"], "seccompProfile": {"type": "Unconfined"}},
    "serviceMonitor": {"enabled": True, "interval": "1m", "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True},
}
SETS: dict[str, Tree] = {
    **{mode: {**SERVER, "mode": mode} for mode in mode_names()},
    "dual stack": {**SERVER, "clusterCIDRs": ["10.244.0.0/16", "fd00:244::/56"]},
    "monitored": {**SERVER, "serviceMonitor": {"enabled": True}, "dashboards": {"enabled": True}},
    "privileged": {**SERVER, "security": {"privileged": True}, "rbac": {"create": False}},
    "everything": EVERYTHING,
}
SERVICE_MONITORS: Tree = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "servicemonitors.monitoring.coreos.com",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "ServiceMonitor", "plural": "servicemonitors"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["selector", "endpoints"],
                                "x-kubernetes-preserve-unknown-fields": True,
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture
def helm(tmp_path: Path, real_programs: None) -> Helm:
    try:
        return Helm(tmp_path)
    except NoGo as reason:
        pytest.skip(f"NO HELM: {reason}")


@pytest.fixture
def monitored(kubectl: Kubectl) -> Iterator[Kubectl]:
    """An API server that knows ServiceMonitors."""
    definition = yaml.safe_dump(SERVICE_MONITORS)
    kubectl("apply", "-f", "-", stdin=definition)
    kubectl(
        "wait",
        "--for=condition=Established",
        f"--timeout={LIMIT_SECONDS:.0f}s",
        "-f",
        "-",
        stdin=definition,
    )
    yield kubectl
    kubectl("delete", "-f", "-", stdin=definition)


def found(objects: list[Tree], kind: str) -> Any:
    """The one object of a kind, as YAML has it."""
    (item,) = (item for item in objects if item["kind"] == kind)
    return item


def pod(objects: list[Tree]) -> Any:
    return found(objects, "DaemonSet")["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", SETS)
def test_lint_is_content(helm: Helm, name: str) -> None:
    helm.lint(SETS[name])


def test_the_api_server_accepts_all_that_is_rendered(helm: Helm, monitored: Kubectl) -> None:
    for values in SETS.values():
        monitored(
            "apply", "--server-side", "--dry-run=server", "-f", "-", stdin=helm.template(values)
        )


@pytest.mark.parametrize("name", SETS)
def test_the_program_accepts_its_configuration_and_arguments(
    helm: Helm, name: str, tmp_path: Path
) -> None:
    objects = helm.objects(SETS[name])
    maps: list[Any] = [item["data"] for item in objects if item["kind"] == "ConfigMap"]
    (data,) = (data for data in maps if "config.conf" in data)
    values: Any = SETS[name]
    (tmp_path / "config.conf").write_text(data["config.conf"])
    for container in (*pod(objects)["initContainers"], *pod(objects)["containers"]):
        words = [w.replace("/var/lib/kube-proxy", str(tmp_path)) for w in container["command"][1:]]
        settings = parse_command_line(words)
        assert isinstance(settings, Settings), settings
        assert settings.init_only == (container["name"] == "init")
        assert settings.config.mode == values.get("mode", "nftables")
        assert settings.config.cluster_cidrs == tuple(values.get("clusterCIDRs", ()))
    assert f'server: "{values["apiServer"]}"' in data["kubeconfig.conf"]


def needed_by(mode: str) -> list[str]:
    return [need.name for need in NEEDS if mode in need.modes]


@pytest.mark.parametrize("mode", mode_names())
def test_each_mode_gets_the_capabilities_it_needs(helm: Helm, mode: str) -> None:
    spec = pod(helm.objects({**SERVER, "mode": mode}))
    (init,), (main,) = spec["initContainers"], spec["containers"]
    assert init["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert main["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": needed_by(mode)},
    }
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


def test_values_reach_the_pod(helm: Helm) -> None:
    spec = pod(helm.objects(EVERYTHING))
    (main,) = spec["containers"]
    assert main["image"] == "registry.example/net/kubeproxy:x"
    assert main["resources"] == {
        "limits": {"memory": "256Mi"},
        "requests": {"cpu": "50m", "memory": "64Mi"},
    }
    capabilities = main["securityContext"]["capabilities"]["add"]
    assert capabilities == [*needed_by("ipvs"), "SYS_RESOURCE"]
    assert main["livenessProbe"]["httpGet"]["host"] == "::1"
    assert main["livenessProbe"]["failureThreshold"] == 2
    assert "readinessProbe" not in main
    assert main["livenessProbe"]["httpGet"]["port"] == 11256
    assert "priorityClassName" not in spec
    assert "tolerations" not in spec
    assert spec["imagePullSecrets"] == [{"name": "s"}]


def test_two_pods_fit_on_a_node_during_a_rollout(helm: Helm) -> None:
    """A declared port is a host port in the node's network, which only one pod can have."""
    rendered = helm.objects(SERVER)
    base = yaml.safe_load((BASE / "daemonset.yaml").read_text())
    for spec in (found(rendered, "DaemonSet")["spec"], base["spec"]):
        assert spec["minReadySeconds"] == 10, "by then it waits, and is known as a successor"
        assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": "10%", "maxUnavailable": 0}
        assert not [each for each in spec["template"]["spec"]["containers"] if "ports" in each]


def test_pods_that_may_be_unavailable_take_the_place_of_the_surge(helm: Helm) -> None:
    """The API server refuses both, and Helm merges ours with an operator's."""
    own = {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "20%"}}}
    rendered = helm.objects({**SERVER, **own})
    strategy = found(rendered, "DaemonSet")["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "20%"}}


def test_by_default_it_runs_this_version(helm: Helm) -> None:
    (main,) = pod(helm.objects(SERVER))["containers"]
    assert main["image"] == f"localhost/kubeproxy:{PACKAGE_VERSION}"
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == PACKAGE_VERSION


def test_another_configuration_starts_new_pods(helm: Helm) -> None:
    def checksum(values: Tree) -> str:
        template = found(helm.objects(values), "DaemonSet")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    changed: Tree = {**SERVER, "config": {"conntrack": {"min": 1}}}
    assert checksum(SERVER) == checksum({**SERVER}) != checksum(changed)


def test_metrics_are_reachable_where_they_are_to_be_scraped(helm: Helm) -> None:
    for name, address in (("nftables", "127.0.0.1:10249"), ("monitored", "0.0.0.0:10249")):
        text = helm.template(SETS[name])
        assert f"metricsBindAddress: {address}" in text


def test_the_role_is_that_of_the_base(helm: Helm) -> None:
    """Which is compared with the requests that are really made."""
    base = list(yaml.safe_load_all((BASE / "rbac.yaml").read_text()))
    assert (
        found(helm.objects(SERVER), "ClusterRole")["rules"] == found(base, "ClusterRole")["rules"]
    )


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({}, "apiServer must be given: --set apiServer=https://HOST:PORT"),
        ({"apiServer": "https://CONTROL_PLANE_ADDRESS:6443"}, "apiServer"),
        ({**SERVER, "mode": "kernelspace"}, "mode"),
        ({**SERVER, "clusterCIDRs": "10.0.0.0/8"}, "clusterCIDRs"),
        ({**SERVER, "tolerance": []}, "tolerance"),
        ({**SERVER, "security": {"extraCapabilities": ["CAP_BPF"]}}, "extraCapabilities"),
        ({**SERVER, "probes": {"liveness": {"httpGet": {}}}}, "httpGet"),
    ],
)
def test_wrong_values_are_named(helm: Helm, values: Tree, part: str) -> None:
    assert part in helm.problem(values)


def test_a_namespace_of_its_own_admits_the_pods(helm: Helm, kubectl: Kubectl) -> None:
    """PodSecurity refuses the pods in a stricter namespace."""
    values: Tree = {**SERVER, "podSecurity": {"createNamespace": True}}
    objects = helm.objects(values, namespace="proxies")
    namespace = found(objects, "Namespace")
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    metadata = {"name": "strict", "labels": labels}
    strict = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    for item in (namespace, strict):
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump(item))
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod(objects)}
    create = ("create", "--dry-run=server", "-f", "-", "-n")
    kubectl(*create, "proxies", stdin=yaml.safe_dump(made))
    refused = kubectl.run(*create, "strict", stdin=yaml.safe_dump(made))
    assert "violates PodSecurity" in refused.stderr
    for name in ("proxies", "strict"):
        kubectl("delete", "namespace", name, "--wait=false")


def test_helm_does_not_replace_what_kubeadm_made(
    helm: Helm, kubeadm: Kubectl, real: RealApiServer
) -> None:
    target = ("-n", "kube-system", "daemonset", "kube-proxy")
    before = kubeadm.get(*target)
    words = ("install", "nodes", str(CHART), "--namespace=kube-system")
    refused = helm.run(*words, f"--kubeconfig={real.kubeconfig()}", values=SERVER)
    assert refused.returncode != 0
    assert 'DaemonSet "kube-proxy" in namespace "kube-system" exists' in refused.stderr
    assert differences(before, kubeadm.get(*target)) == {}
