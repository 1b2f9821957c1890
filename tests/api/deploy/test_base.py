"""deploy/base: rendered by kubectl kustomize, applied, and harmless where kubeadm was first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
import yaml
from tests.support.kubectl import Kubectl, Tree, differences
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.api.auth.kubeconfig import access_from, merge, parse_kubeconfig
from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.errors import ConfigError
from kubeproxy.version import PACKAGE_VERSION

BASE = Path(__file__).parents[3] / "deploy/base"
MOUNT = "/var/lib/kube-proxy"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def rendered(kubectl: Kubectl, folder: Path) -> dict[str, Tree]:
    """The objects that kustomize makes, by kind."""
    objects = yaml.safe_load_all(kubectl("kustomize", str(folder)))
    return {str(item["kind"]): item for item in objects}


def pod_spec(daemonset: Tree) -> Tree:
    return cast(Tree, cast("dict[str, Tree]", daemonset["spec"])["template"]["spec"])


@pytest.mark.api
@pytest.mark.timeout(1800)
def test_kustomize_renders_what_the_api_server_accepts(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", "--dry-run=server", "-k", str(BASE))
    objects = rendered(kubectl, BASE)
    name = cast(Tree, objects["ConfigMap"]["metadata"])["name"]
    volumes = cast("list[Tree]", pod_spec(objects["DaemonSet"])["volumes"])
    assert {"name": "config", "configMap": {"name": name}} in volumes


@pytest.mark.api
@pytest.mark.timeout(1800)
def test_the_overlay_of_the_readme_gives_the_address_and_the_image(
    kubectl: Kubectl, tmp_path: Path
) -> None:
    (tmp_path / "deploy").symlink_to(BASE.parent)
    text = (BASE.parent / "README.md").read_text()
    (script,) = re.findall(r"^```[^\n]*\n(mkdir .*?)kubectl apply -k \S+\n```", text, re.M | re.S)
    subprocess.run(["sh", "-euc", script], cwd=tmp_path, check=True)
    objects = rendered(kubectl, tmp_path / "my-cluster")
    data = cast("dict[str, str]", objects["ConfigMap"]["data"])
    assert "server: https://192.0.2.1:6443" in data["kubeconfig.conf"]
    assert "mode: nftables" in data["config.conf"]
    spec = pod_spec(objects["DaemonSet"])
    containers = cast(
        "list[Tree]",
        [*cast("list[Tree]", spec["initContainers"]), *cast("list[Tree]", spec["containers"])],
    )
    assert [c["image"] for c in containers] == [f"registry.example/kubeproxy:{PACKAGE_VERSION}"] * 2


@pytest.mark.api
@pytest.mark.timeout(1800)
def test_applied_over_kubeadm_it_replaces_nothing(kubeadm: Kubectl) -> None:
    """The API server refuses the DaemonSet, and no ConfigMap of kubeadm's is written."""
    targets = ("daemonset/kube-proxy", "configmap/kube-proxy")
    before = [kubeadm.get("-n", "kube-system", target) for target in targets]
    done = kubeadm.run("apply", "-k", str(BASE))
    assert done.returncode == 1
    assert "field is immutable" in done.stderr
    after = [kubeadm.get("-n", "kube-system", target) for target in targets]
    assert differences(before, after) == {}
    kubeadm("delete", "-k", str(BASE), "--ignore-not-found")


def test_the_configuration_is_accepted_and_points_to_its_kubeconfig() -> None:
    settings = parse_command_line(["--config", str(BASE / "config.conf")])
    assert isinstance(settings, Settings)
    assert settings.config.mode == "nftables"
    assert settings.config.client_connection.kubeconfig == f"{MOUNT}/kubeconfig.conf"
    assert f"mountPath: {MOUNT}\n" in (BASE / "daemonset.yaml").read_text()


def test_the_kubeconfig_uses_the_rotating_token_and_wants_a_server(tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("")
    text = (BASE / "kubeconfig.conf").read_text().replace(f"{SERVICE_ACCOUNT}/ca.crt", str(ca))
    with pytest.raises(ConfigError, match=r"CONTROL_PLANE_ADDRESS.* has a placeholder"):
        access_from(merge([parse_kubeconfig(text.encode())]))
    replaced = text.replace("CONTROL_PLANE_ADDRESS", "192.0.2.1")
    access = access_from(merge([parse_kubeconfig(replaced.encode())]))
    assert access.token_file == f"{SERVICE_ACCOUNT}/token"
    assert access.server == "https://192.0.2.1:6443"


START_BESIDE_RULES = """
nft add table ip kube-proxy
"$@"
code=$?
nft list tables
exit $code
"""


@pytest.mark.kernel
def test_the_daemon_ends_with_the_file_to_write_to_before_it_removes_any_rule() -> None:
    """The rules of another mode, which would be removed at the start, serve on."""
    kubeconfig = BASE / "kubeconfig.conf"
    daemon = [sys.executable, "-m", "kubeproxy", f"--kubeconfig={kubeconfig}"]
    words = ["unshare", "--net", "sh", "-c", START_BESIDE_RULES, "sh", *daemon]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 1
    assert f"as clusters[].cluster.server into {kubeconfig}" in done.stderr, done.stderr
    assert done.stdout == "table ip kube-proxy\n"


def test_the_pods_use_the_account_that_has_the_role() -> None:
    objects = list(yaml.safe_load_all((BASE / "rbac.yaml").read_text()))
    (account,) = (item for item in objects if item["kind"] == "ServiceAccount")
    (binding,) = (item for item in objects if item["kind"] == "ClusterRoleBinding")
    wanted = {k: account["metadata"][k] for k in ("name", "namespace")}
    assert binding["subjects"] == [{"kind": "ServiceAccount", **wanted}]
    spec = pod_spec(yaml.safe_load((BASE / "daemonset.yaml").read_text()))
    assert spec["serviceAccountName"] == wanted["name"]


def test_only_the_init_container_is_privileged() -> None:
    spec = pod_spec(yaml.safe_load((BASE / "daemonset.yaml").read_text()))
    (init,), (main,) = (cast("list[Tree]", spec[k]) for k in ("initContainers", "containers"))
    words = cast("list[str]", main["command"])
    assert init["command"] == [*words, "--init-only"]
    assert cast(Tree, init["securityContext"])["privileged"] is True
    security = cast(Tree, main["securityContext"])
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert init["image"] == main["image"] == f"localhost/kubeproxy:{PACKAGE_VERSION}"
