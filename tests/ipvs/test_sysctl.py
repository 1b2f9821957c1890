"""Kernel parameters are written only when they differ, and failures name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeproxy.errors import KernelError
from kubeproxy.kernel.sysctl import (
    ensure_sysctl,
    find_sysctl,
    kernel_release,
    parse_release,
    read_sysctl,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/forward").write_text("0\n")
    return tmp_path


def test_an_equal_value_is_not_written(root: Path) -> None:
    (root / "net/forward").chmod(0o444)
    before = (root / "net/forward").stat().st_mtime_ns
    assert ensure_sysctl("net/forward", 0, root=root) is False
    assert (root / "net/forward").stat().st_mtime_ns == before


def test_a_different_value_is_written(root: Path) -> None:
    assert ensure_sysctl("net/forward", 1, root=root) is True
    assert read_sysctl("net/forward", root=root) == "1"


def test_a_missing_parameter_is_named_with_the_value(root: Path) -> None:
    with pytest.raises(KernelError, match="can't set sysctl net/absent to 1: No such file"):
        ensure_sysctl("net/absent", 1, root=root)
    with pytest.raises(KernelError, match="can't read sysctl net/absent"):
        read_sysctl("net/absent", root=root)
    assert find_sysctl("net/absent", root=root) is None


@pytest.mark.parametrize(
    ("text", "release"),
    [("6.1.0-18-amd64", (6, 1)), ("5.9-rc1", (5, 9)), ("4.19.5", (4, 19)), ("5", (5, 0))],
)
def test_releases_are_read(text: str, release: tuple[int, int]) -> None:
    assert parse_release(text) == release


def test_the_running_kernel_has_a_release() -> None:
    assert kernel_release() >= (4, 0)
