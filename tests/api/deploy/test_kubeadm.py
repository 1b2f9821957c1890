"""deploy/kubeadm: a cluster that kubeadm made gets another image and nothing else, and back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.support.kubectl import Kubectl, Tree, differences

from kubeproxy.version import PACKAGE_VERSION

pytestmark = [pytest.mark.api, pytest.mark.timeout(1800)]

FOLDER = Path(__file__).parents[3] / "deploy/kubeadm"
OURS = f"localhost/kubeproxy:{PACKAGE_VERSION}"
UPSTREAM = "upstream.example/kube-proxy:v1.36.4"
IMAGE = ".spec.template.spec.containers[0].image"
TARGET = ("-n", "kube-system", "daemonset", "kube-proxy")


def daemonset(kubectl: Kubectl) -> Tree:
    return kubectl.get(*TARGET)


def write_way_back(kubectl: Kubectl, folder: Path) -> Path:
    back = folder / "back.yaml"
    template = f"-o=go-template-file={FOLDER / 'back.gotemplate'}"
    back.write_text(kubectl("get", *TARGET, template))
    return back


def patch(kubectl: Kubectl, file: Path) -> None:
    kubectl("patch", *TARGET, "--patch-file", str(file))


def test_the_swap_changes_the_image_only_and_the_way_back_changes_nothing(
    kubeadm: Kubectl, tmp_path: Path
) -> None:
    before = daemonset(kubeadm)
    back = write_way_back(kubeadm, tmp_path)
    patch(kubeadm, FOLDER / "image.yaml")
    assert differences(before, daemonset(kubeadm)) == {IMAGE: (UPSTREAM, OURS)}
    patch(kubeadm, back)
    assert differences(before, daemonset(kubeadm)) == {}


def test_the_one_liner_does_what_the_patch_does(kubeadm: Kubectl) -> None:
    before = daemonset(kubeadm)
    text = (FOLDER / "README.md").read_text()
    (line,) = re.findall(r"^kubectl (.* set image .*)$", text, re.MULTILINE)
    kubeadm(*line.split())
    assert differences(before, daemonset(kubeadm)) == {IMAGE: (UPSTREAM, OURS)}


def test_the_patch_names_the_image_of_this_version() -> None:
    tree = yaml.safe_load((FOLDER / "image.yaml").read_text())
    container = {"name": "kube-proxy", "image": OURS}
    assert tree == {"spec": {"template": {"spec": {"containers": [container]}}}}
