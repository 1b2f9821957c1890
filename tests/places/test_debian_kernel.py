"""Kernels from packages: unpacked in the cache, once; what cannot be had is named with a remedy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kpctl.places.debian_kernel import NoKernel, find_kernel

CONTROL = """\
Package: linux-image-9.9-test
Version: 1
Architecture: all
Maintainer: nobody
Description: a kernel that is none
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if any(shutil.which(program) is None for program in ("dpkg-deb", "depmod")):
        pytest.skip("dpkg-deb and depmod are missing (packages dpkg, kmod)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def package(folder: Path, images: list[str]) -> Path:
    root = folder / "root"
    for name in ("DEBIAN/control", "lib/modules/9.9-test/modules.order", *images):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(CONTROL if name == "DEBIAN/control" else "")
    file = folder / "linux-image-9.9-test_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", root, file], check=True, capture_output=True)
    return file


def test_a_file_is_unpacked_and_its_modules_are_listed(cache: Path, tmp_path: Path) -> None:
    file = package(tmp_path, ["boot/vmlinuz-9.9-test"])
    found = find_kernel(str(file))
    assert (found.release, found.image.name) == ("9.9-test", "vmlinuz-9.9-test")
    assert found.image.is_relative_to(cache)
    assert (found.modules / "modules.dep").exists()
    file.unlink()
    assert find_kernel(str(file)) == found, "it is in the cache"


def test_a_package_of_something_else_is_refused(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(NoKernel, match="no package of one kernel"):
        find_kernel(str(package(tmp_path, [])))
    assert list((cache / "kubeproxy-tests/kernels").iterdir()) == []


def test_what_apt_does_not_have_is_named_with_a_remedy(cache: Path) -> None:
    with pytest.raises(NoKernel, match=r"linux-image-0\.0-none.*KERNELS="):
        find_kernel("linux-image-0.0-none")


def test_processes_that_unpack_at_once_all_find_it(cache: Path, tmp_path: Path) -> None:
    file = package(tmp_path, ["boot/vmlinuz-9.9-test"])
    program = "import sys; from kpctl.places.debian_kernel import find_kernel as f; f(sys.argv[1])"
    argv = [sys.executable, "-c", program, str(file)]
    processes = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[1] for process in processes] == [""] * 4
    unpacked = (cache / "kubeproxy-tests/kernels").iterdir()
    assert [folder.name for folder in unpacked] == ["linux-image-9.9-test"]
