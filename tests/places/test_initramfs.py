"""The archive a kernel starts with, read back by the tool that knows the format."""

from __future__ import annotations

import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from kpctl.places.initramfs import pack_initramfs, read_modules


def test_busybox_reads_the_archive(tmp_path: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip('busybox is missing (package "busybox-static")')
    archive = pack_initramfs(b"program", "#!/bin/busybox sh\n", [b"first", b"second module"])
    subprocess.run([busybox, "cpio", "-i"], input=archive, cwd=tmp_path, check=True)
    assert (tmp_path / "init").read_text() == "#!/bin/busybox sh\n"
    assert (tmp_path / "bin/busybox").read_bytes() == b"program"
    assert (tmp_path / "modules/000.ko").read_bytes() == b"first"
    assert (tmp_path / "modules/001.ko").read_bytes() == b"second module"
    assert (tmp_path / "bin/busybox").stat().st_mode & 0o777 == 0o755
    assert {"dev", "host", "root"} <= {path.name for path in tmp_path.iterdir() if path.is_dir()}


def test_modules_come_after_what_they_need_uncompressed_and_once(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text(
        "net/9p.ko.xz: net/netfs.ko net/9pnet.ko.xz\n"
        "net/netfs.ko:\n"
        "net/9pnet.ko.xz:\n"
        "net/9pnet-virtio.ko.xz: net/9pnet.ko.xz\n"
    )
    (tmp_path / "net").mkdir()
    for name in ("9p", "9pnet", "9pnet-virtio"):
        (tmp_path / f"net/{name}.ko.xz").write_bytes(lzma.compress(name.encode()))
    (tmp_path / "net/netfs.ko").write_bytes(b"netfs")
    found = list(read_modules(tmp_path, ("9pnet_virtio", "9p", "built_in")))
    assert found == [b"9pnet", b"9pnet-virtio", b"netfs", b"9p"]
