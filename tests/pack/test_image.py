"""The image: what is in it, what is not, and a Service that works with nothing but its files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.pack.kit import SERVICE, assert_serves, in_root, read_layout, run_in_root
from tests.support.host import Host

from kubeproxy.version import KUBERNETES_VERSION, PACKAGE_VERSION

pytestmark = [pytest.mark.image, pytest.mark.timeout(900)]

MOST_COMPRESSED_BYTES = 35_000_000
KUBE_PROXY = "/usr/local/bin/kube-proxy"


def test_the_image_is_small_and_describes_itself(image: Path) -> None:
    config, manifest, layer = read_layout(image / "image-amd64")
    assert len(layer) < MOST_COMPRESSED_BYTES
    settings = config["config"]
    assert isinstance(settings, dict)
    labels = settings["Labels"]
    assert labels == manifest["annotations"]
    assert labels["org.opencontainers.image.version"] == PACKAGE_VERSION
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert (config["os"], config["architecture"]) == ("linux", "amd64")
    assert settings["Entrypoint"] == [KUBE_PROXY]


def test_nothing_unused_is_in_the_image(rootfs: Path) -> None:
    """No shell, perl, package manager, pip, documentation, lab or benchmark; bytecode for all."""
    names = {str(path.relative_to(rootfs)) for path in rootfs.rglob("*") if path.is_file()}
    programs = {Path(name).name for name in names if "/bin/" in name or "/sbin/" in name}
    assert not programs & {"sh", "bash", "dash", "perl", "dpkg", "apt", "apt-get", "pip"}
    unused = ("/pip/", "kpctl/lab", "kpctl/bench", "kpctl/flows", "share/man", "share/locale")
    assert not [name for name in names if any(part in name for part in unused)]
    documents = {Path(name).name for name in names if name.startswith("usr/share/doc/")}
    assert documents == {"copyright"}
    sources = [Path(name) for name in names if name.endswith(".py") and "usr/lib" in name]
    compiled = {name for name in names if name.endswith(".cpython-311.pyc")}
    assert len(sources) > 500
    for path in sources:
        assert str(path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc") in compiled, path


def test_the_sbom_names_packages_and_dependencies_with_versions(image: Path, rootfs: Path) -> None:
    (file,) = image.glob("*.spdx.json")
    inside = rootfs / "usr/share/sbom/kubeproxy.spdx.json"
    assert inside.read_bytes() == file.read_bytes()
    listed = {p["name"]: p["versionInfo"] for p in json.loads(file.read_text())["packages"]}
    assert {"libc6", "iptables", "kmod", "python3.11-minimal", "aiohttp", "msgspec"} <= set(listed)
    assert listed["kubeproxy"] == PACKAGE_VERSION
    assert all(listed.values())


def test_both_commands_and_both_variants_of_iptables_run(rootfs: Path) -> None:
    def output(*argv: str) -> str:
        done = run_in_root(rootfs, *argv)
        return done.stdout + done.stderr

    assert output(KUBE_PROXY, "--version") == f"Kubernetes {KUBERNETES_VERSION}\n"
    assert PACKAGE_VERSION in output("/usr/local/bin/kpctl", "--version")
    assert "(nf_tables)" in output("/usr/sbin/iptables", "--version")
    assert "(nf_tables)" in output("/usr/sbin/ip6tables-nft", "--version")
    assert "(legacy)" in output("/usr/sbin/iptables-legacy", "--version")
    assert "kmod version" in output("/usr/sbin/modprobe", "--version")


def test_kpctl_looks_and_names_what_it_does_not_have(rootfs: Path) -> None:
    (rootfs / "tmp/web.yaml").write_text(SERVICE)
    done = run_in_root(rootfs, "/usr/local/bin/kpctl", "plan", "/tmp/web.yaml")
    assert "shop/web:http" in done.stdout, done.stderr
    done = run_in_root(rootfs, "/usr/local/bin/kpctl", "lab", "--mode", "nftables")
    assert done.returncode == 1
    assert "has no `lab`" in done.stderr


def test_every_module_can_be_imported_and_certificates_are_found(rootfs: Path) -> None:
    """What was left out of the standard library and of the dependencies is missed by nothing."""
    script = """
import sys; sys.path.insert(0, "/usr/lib/kubeproxy")
import pkgutil, ssl
from importlib import import_module
for name in ("kubeproxy", "kpctl"):
    for found in pkgutil.walk_packages(import_module(name).__path__, name + "."):
        if not found.name.endswith("__main__"):
            import_module(found.name)
import aiohttp, rich.console, rich.live, rich.table, yaml
yaml.CSafeLoader
assert len(ssl.create_default_context().get_ca_certs()) > 100
"""
    done = run_in_root(rootfs, "/usr/bin/python3.11", "-I", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.kernel
@pytest.mark.parametrize("mode", ["nftables", "iptables", "userspace"])
def test_a_service_works_with_the_files_of_the_image_alone(
    host: Host, rootfs: Path, mode: str
) -> None:
    manifests = rootfs / "tmp/services.d"
    manifests.mkdir(exist_ok=True)
    (manifests / "web.yaml").write_text(SERVICE)
    flags = (f"--proxy-mode={mode}", "--manifests=/tmp/services.d")
    assert_serves(host, in_root(rootfs, KUBE_PROXY), *flags)
    if mode != "nftables":
        assert 'Using iptables variant" variant="nft"' in host.log


def test_another_program_reads_the_archive(image: Path) -> None:
    """skopeo agrees about the digest."""
    (archive,) = image.glob("*.oci.tar")
    (digest,) = image.glob("*.digest")
    try:
        done = subprocess.run(
            ["skopeo", "inspect", f"oci-archive:{archive}"], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("skopeo is missing: apt-get install skopeo")
    assert json.loads(done.stdout)["Digest"] == digest.read_text().strip()
