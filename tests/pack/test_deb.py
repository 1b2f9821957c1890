"""The Debian package, installed by dpkg in a Debian root made for it."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest
from scripts.pack.deb import build_deb
from tests.pack.conftest import require
from tests.pack.kit import SERVICE, apt_sources, assert_serves, in_root, run_in_root
from tests.support.host import Host

from kubeproxy.version import KUBERNETES_VERSION, PACKAGE_VERSION

pytestmark = [pytest.mark.image, pytest.mark.timeout(900)]

DEPENDENCIES = "python3.11,kmod,ca-certificates,netbase,iptables"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Debian root with the package."""
    require("mmdebstrap", "dpkg-deb", "unshare")
    file = build_deb(tmp_path_factory.mktemp("deb"), "amd64")
    root = tmp_path_factory.mktemp("debian") / "root"
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    made = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={DEPENDENCIES}", suite]
    subprocess.run([*made, root, *apt_sources()], check=True, timeout=600)
    subprocess.run(["dpkg", f"--root={root}", "--install", file], check=True, timeout=300)
    return root


def test_it_installs_commands_unit_and_settings(installed: Path) -> None:
    shown = run_in_root(installed, "/usr/bin/dpkg-query", "-W", "kubeproxy").stdout
    assert shown.split() == ["kubeproxy", PACKAGE_VERSION]
    done = run_in_root(installed, "/usr/bin/kube-proxy", "--version")
    assert (done.stdout, done.stderr) == (f"Kubernetes {KUBERNETES_VERSION}\n", "")
    unit = installed / "usr/lib/systemd/system/kube-proxy.service"
    assert "Type=notify" in unit.read_text()
    settings = run_in_root(
        installed, "/usr/bin/dpkg-query", "-W", "-f=${Conffiles}", "kubeproxy"
    ).stdout
    assert "/etc/kube-proxy/config.yaml" in settings


@pytest.mark.kernel
def test_a_service_works_as_packaged(host: Host, installed: Path) -> None:
    """With the packaged example as its configuration."""
    (installed / "etc/kube-proxy/services.d/web.yaml").write_text(SERVICE)
    flags = ("--config=/etc/kube-proxy/config.yaml", "--manifests=/etc/kube-proxy/services.d")
    assert_serves(host, in_root(installed, "/usr/bin/kube-proxy"), *flags)


def test_removing_it_leaves_settings_only(installed: Path) -> None:
    (installed / "etc/kube-proxy/services.d/web.yaml").unlink(missing_ok=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(
        ["dpkg", f"--root={installed}", "--remove", "kubeproxy"], check=True, env=environment
    )
    assert not (installed / "usr/lib/kubeproxy").exists()
    assert (installed / "etc/kube-proxy/config.yaml").exists()
