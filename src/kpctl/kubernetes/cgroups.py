"""Cgroups of the cluster's containers, in every hierarchy the host has, of either version."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_MOUNTS = Path("/proc/mounts")
# A cpuset of version 1 takes no process before it has these.
_INHERITED = ("cpuset.cpus", "cpuset.mems")


def make_cgroups(path: str) -> None:
    """Make a cgroup (`/parent/child`) in every hierarchy."""
    for hierarchy in _hierarchies():
        place = hierarchy
        for name in path.strip("/").split("/"):
            parent, place = place, place / name
            _delegate(parent)
            with contextlib.suppress(FileExistsError):
                place.mkdir()
                _inherit(parent, place)


def remove_cgroups(path: str) -> bool:
    """Remove a cgroup and all below it. Return whether it is gone: processes may still end."""
    is_gone = True
    for hierarchy in _hierarchies():
        top = hierarchy / path.strip("/")
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                is_gone = False
    return is_gone


def cgroups_named(prefix: str) -> set[str]:
    """Names of top-level cgroups that begin with a prefix."""
    return {path.name for top in _hierarchies() for path in top.glob(f"{prefix}*")}


def _hierarchies() -> list[Path]:
    mounts = [line.split() for line in _MOUNTS.read_text().splitlines()]
    return [Path(place) for _, place, kind, *_ in mounts if kind in ("cgroup", "cgroup2")]


def _delegate(parent: Path) -> None:
    """Let children of a cgroup of version 2 have its controllers, which a kubelet demands."""
    controllers = parent / "cgroup.controllers"
    if controllers.exists():
        words = [f"+{name}" for name in controllers.read_text().split()]
        # A cgroup that holds processes refuses: of a container, say, whose own it is.
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text(" ".join(words))


def _inherit(parent: Path, child: Path) -> None:
    for name in _INHERITED:
        value, here = parent / name, child / name
        if here.exists() and not here.read_text().strip():
            here.write_text(value.read_text())
