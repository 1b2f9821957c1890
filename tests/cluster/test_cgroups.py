"""Cgroups of nodes have what a kubelet needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpctl.kubernetes import cgroups


def test_controllers_of_version_2_are_handed_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet refuses a cgroup that has none. A plain folder stands in for the hierarchy."""
    top = tmp_path / "unified"
    top.mkdir()
    (top / "cgroup.controllers").write_text("cpu memory\n")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup2 {top} cgroup2 rw 0 0\n")
    monkeypatch.setattr(cgroups, "_MOUNTS", mounts)
    cgroups.make_cgroups("/lab/node-1")
    assert (top / "lab/node-1").is_dir()
    assert (top / "cgroup.subtree_control").read_text() == "+cpu +memory"
