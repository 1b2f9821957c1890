"""`make deb`: a Debian package for plain hosts.

    python -m scripts.pack.deb [--output=build] [--architecture=arm64]

The dependencies are inside, in a folder of the package's own: those of a distribution are other
versions than the tested ones. There are no maintainer scripts; the service is enabled by its user,
because a proxy without a configuration would not do what anyone wants.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from scripts.pack import sbom
from scripts.pack.archive import settle
from scripts.pack.program import MACHINES, build_program, compile_bytecode
from scripts.pack.rootfs import PLACE, write_launchers
from scripts.pack.source import ROOT, Source, read_source

_CONTROL = """\
Package: kubeproxy
Version: {version}
Architecture: {architecture}
Maintainer: The kubeproxy authors <kubeproxy@localhost>
Installed-Size: {kilobytes}
Depends: python3.11, kmod, ca-certificates, netbase
Recommends: iptables
Suggests: nftables, conntrack
Section: net
Priority: optional
Description: kube-proxy in Python, with or without a cluster
 A drop-in for Kubernetes' kube-proxy {kubernetes_version} in nftables, iptables, ipvs
 and userspace mode. On a plain host it serves a folder of manifests.
 The command kpctl shows what it decides and why.
"""
_HOST_FILES = ROOT / "deploy/systemd"
"""The unit, and an example of /etc/kube-proxy."""


def build_deb(output: Path, architecture: str) -> Path:
    """Write the package into `output`."""
    source = read_source()
    output.mkdir(parents=True, exist_ok=True)
    file = output / f"kubeproxy_{source.version}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        _add_files(root, source, architecture)
        _add_control(root, source, architecture)
        settle(root, source.epoch)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, file],
            check=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(source.epoch)},
            stdout=subprocess.DEVNULL,
        )
    return file


def _add_files(root: Path, source: Source, architecture: str) -> None:
    build_program(root / PLACE, source, [architecture])
    compile_bytecode(root / PLACE, f"/{PLACE}")
    write_launchers(root / "usr/bin")
    documents = root / "usr/share/doc/kubeproxy"
    documents.mkdir(parents=True)
    shutil.copyfile(ROOT / "LICENSE", documents / "copyright")
    (documents / "kubeproxy.spdx.json").write_text(sbom.document(source, [], root / PLACE))
    pages = root / "usr/share/man/man8"
    pages.mkdir(parents=True)
    for page in sorted((ROOT / "docs/man").glob("*.8")):
        shutil.copyfile(page, pages / page.name)
    _add_host_files(root)


def _add_host_files(root: Path) -> None:
    units = root / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    shutil.copyfile(_HOST_FILES / "kube-proxy.service", units / "kube-proxy.service")
    shutil.copytree(_HOST_FILES / "etc", root / "etc")


def _add_control(root: Path, source: Source, architecture: str) -> None:
    files = [path for path in root.rglob("*") if path.is_file()]
    fields = source._asdict() | {
        "architecture": architecture,
        "kilobytes": sum(path.stat().st_size for path in files) // 1024,
    }
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(_CONTROL.format(**fields))
    settings = sorted(path for path in files if path.is_relative_to(root / "etc"))
    lines = [f"/{path.relative_to(root)}\n" for path in settings]
    (root / "DEBIAN/conffiles").write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the Debian package.")
    parser.add_argument("--output", type=Path, default=ROOT / "build")
    parser.add_argument("--architecture", choices=sorted(MACHINES), default="amd64")
    chosen = parser.parse_args()
    file = build_deb(chosen.output, chosen.architecture)
    print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
