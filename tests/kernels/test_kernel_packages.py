"""What people install, in kernels that operators run: the image in ipvs mode, the systemd unit."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scripts.pack.deb import build_deb
from scripts.pack.image import build_image
from tests.pack.conftest import require
from tests.pack.kit import apt_sources, unpack_image
from tests.support.confined import FRONTENDS

from kpctl.places.debian_kernel import NoKernel, cache_folder, find_kernel
from kpctl.places.qemu import HOST, EmulatedKernel, missing

IMAGE = Path(__file__).with_name("guest_image.py")
UNIT = Path(f"{HOST}{Path(__file__).with_name('guest_unit.py')}")
INCLUDED = "systemd-sysv,dbus,python3.11,kmod,ca-certificates,netbase,iptables,iproute2"
HOUR = 3600.0
SAFEST = 3.0
"""What `systemd-analyze security` may say at most; 10 is a service without any restriction."""

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(2 * HOUR)]


@pytest.fixture(scope="session")
def image_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of our image."""
    require("apt-get", "dpkg-deb")
    folder = tmp_path_factory.mktemp("image")
    build_image(folder, "amd64")
    unpack_image(folder / "image-amd64", folder / "root")
    return folder / "root"


@pytest.fixture(scope="session")
def debian_root() -> Path:
    """A small Debian with systemd, made once per machine."""
    require("mmdebstrap")
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    root = cache_folder() / f"debian-{suite}.tar"
    if not root.exists():
        made = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={INCLUDED}", suite]
        draft = root.with_name(f"draft-{root.name}")
        subprocess.run([*made, draft, *apt_sources()], check=True, timeout=HOUR)
        draft.rename(root)
    return root


@pytest.fixture(scope="session")
def systemd_host(debian_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That Debian with our package."""
    root = tmp_path_factory.mktemp("debian")
    subprocess.run(["tar", "-xf", debian_root, "-C", root, "--exclude=./dev/*"], check=True)
    package = build_deb(tmp_path_factory.mktemp("deb"), "amd64")
    subprocess.run(["dpkg", f"--root={root}", "--install", package], check=True, timeout=HOUR)
    return root


@pytest.mark.parametrize("mode", ["ipvs", "nftables"])
def test_the_image_serves(kernel: EmulatedKernel, image_root: Path, mode: str) -> None:
    """ipvs is here because few hosts have it; tests/pack runs the others on the host's kernel."""
    seen: Any = kernel.call(IMAGE, "serve", str(image_root), mode, timeout_seconds=HOUR)
    assert seen["answered"] == sorted(FRONTENDS), seen["log"]
    assert seen["code"] == 0, seen["log"]


@pytest.mark.parametrize("mode", ["nftables", "ipvs"])
def test_the_unit_under_systemd(systemd_host: Path, mode: str) -> None:
    """Ready after the first sync; back after SIGKILL and by the watchdog; rules stay at a stop."""
    if reason := missing():
        pytest.skip(reason)
    try:
        found = find_kernel("linux-image-amd64")
    except NoKernel as error:
        pytest.skip(str(error))
    with EmulatedKernel(found, root=systemd_host) as guest:
        seen: Any = guest.call(UNIT, "serve", mode, timeout_seconds=HOUR)
        judged = str(guest.call(UNIT, "security", timeout_seconds=HOUR))
    log = "\n".join(seen["log"])
    assert (seen["start"], seen["answer"]) == ("", True), log
    assert seen["after start"]["ActiveState"] == "active"
    assert seen["after start"]["SubState"] == "running"
    assert seen["after start"]["StatusText"]
    assert (seen["killed"], seen["answer after the kill"]) == (True, True), log
    assert seen["watchdog"], log
    assert (seen["restart"], seen["answer after the restart"]) == ("", True), log
    assert (seen["stop"], seen["answer after the stop"]) == ("", True), log
    assert seen["after stop"] == {"ActiveState": "inactive", "Result": "success"}
    assert float(judged.split(":")[1].split()[0]) <= SAFEST, judged
