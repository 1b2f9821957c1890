"""Where a path leads: the directory entries whose change puts other content under its name.

A watch on a directory sees its own entries only. Behind a link there are more: the link itself,
links on the way, and the file at the end. Reading links is the only I/O here; watching the places
is left to `manifests`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

MOST_LINKS = 40
"""The kernel's own limit on links in one path."""

Place: TypeAlias = tuple[Path, str]
"""A directory without links in its path, and the name of an entry."""


def places_of(path: Path) -> tuple[Place, ...]:
    """Return every link on the way to where the path leads, and that place itself, in order.

    What does not exist, or cannot be read, counts as no link.
    """
    found: list[Place] = []
    at, rest = Path("/"), _parts(path.absolute())
    while rest and len(found) <= MOST_LINKS:
        part = rest.pop()
        if part == "..":
            at = at.parent
            continue
        target = _target(at / part)
        if target is None:
            at /= part
            continue
        found.append((at, part))
        at = Path("/") if target.is_absolute() else at
        rest += _parts(target)
    return (*found, (at.parent, at.name))


def _parts(path: Path) -> list[str]:
    """Return the names in a path, the last one first."""
    return [part for part in reversed(path.parts) if part != path.anchor]


def _target(path: Path) -> Path | None:
    try:
        return path.readlink()
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def real_path(places: tuple[Place, ...]) -> Path:
    """Return where a path with these places leads."""
    directory, name = places[-1]
    return directory / name if name else directory


def is_dangling(path: Path) -> bool:
    """Is it a link that leads nowhere? Raises OSError if that cannot be found out."""
    return path.is_symlink() and not path.exists()
