"""What is built once for all tests of this folder. Where it cannot be, tests skip loudly."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from scripts.pack.image import build_image
from scripts.pack.onefile import build_onefile
from tests.pack.kit import unpack_image


def require(*programs: str) -> None:
    """Skip the test, with the reason, where it cannot run."""
    if os.geteuid() != 0:
        pytest.skip("running what was built in a root of its own needs root")
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"these programs are missing: {', '.join(missing)} (scripts/packages.sh test)")


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the image's layout, archive and SBOM."""
    require("apt-get", "dpkg-deb", "unshare")
    output = tmp_path_factory.mktemp("image")
    build_image(output, "amd64")
    return output


@pytest.fixture(scope="session")
def rootfs(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the image, unpacked from its layers."""
    root = tmp_path_factory.mktemp("rootfs")
    unpack_image(image / "image-amd64", root)
    return root


@pytest.fixture(scope="session")
def onefile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("unshare")
    return build_onefile(tmp_path_factory.mktemp("onefile"))
