"""The one-file program: it unpacks itself once, safely, and serves."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from scripts.pack import bootstrap
from tests.pack.kit import SERVICE, assert_serves
from tests.support.host import Host
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.version import KUBERNETES_VERSION

MOST_BYTES = 10_000_000


def run(file: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the file with nothing of this project in its environment."""
    return subprocess.run(
        [file, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        cwd="/",
        env={"PATH": os.environ["PATH"], "KUBE_PROXY_CACHE": str(cache)},
    )


@pytest.mark.image
@pytest.mark.timeout(900)
def test_one_small_file_is_both_commands(onefile: Path, tmp_path: Path) -> None:
    """Started by a name that begins with kpctl it is kpctl; the second start unpacks nothing."""
    assert onefile.stat().st_size < MOST_BYTES
    cache = tmp_path / "cache"
    first = run(onefile, cache, "--version")
    assert (first.stdout, first.stderr) == (f"Kubernetes {KUBERNETES_VERSION}\n", "")
    (folder,) = cache.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = folder.stat()
    (tmp_path / "kpctl").symlink_to(onefile)
    (tmp_path / "web.yaml").write_text(SERVICE)
    looked = run(tmp_path / "kpctl", cache, "plan", str(tmp_path / "web.yaml"))
    assert "shop/web:http" in looked.stdout, looked.stderr
    assert list(cache.iterdir()) == [folder]
    assert folder.stat().st_ino == before.st_ino


@pytest.mark.image
@pytest.mark.kernel
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["nftables", "userspace"])
def test_a_service_works_with_the_one_file(
    host: Host, onefile: Path, tmp_path: Path, mode: str
) -> None:
    """Userspace mode starts a second process, which must find the same modules."""
    (host.manifests / "web.yaml").write_text(SERVICE)
    program = ["env", "-i", f"PATH={os.environ['PATH']}", f"KUBE_PROXY_CACHE={tmp_path}/cache"]
    assert_serves(host, [*program, onefile], f"--proxy-mode={mode}")


def test_a_folder_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """What lies there would be run as root."""
    tmp_path.chmod(0o700)
    bootstrap.require_own(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(ValueError, match="only this user can write to"):
        bootstrap.require_own(tmp_path)


def test_a_link_is_not_a_folder_of_our_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="remove it, or name another"):
        bootstrap.require_own(tmp_path / "link")


def test_a_host_without_the_right_python_or_machine_gets_a_clear_error() -> None:
    with pytest.raises(ValueError, match=r"needs Python 3\.9, and was started by 3\."):
        bootstrap.check_host({"python": "3.9", "machines": []})
    here: dict[str, object] = {"python": "3.11", "machines": ["s390x"]}
    with pytest.raises(ValueError, match=r"is for s390x with glibc, not for "):
        bootstrap.check_host(here)


def test_the_cache_is_the_users_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBE_PROXY_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert bootstrap.cache_folder() == Path("/somewhere/kubeproxy")
    monkeypatch.setenv("KUBE_PROXY_CACHE", "/named")
    assert bootstrap.cache_folder() == Path("/named")
