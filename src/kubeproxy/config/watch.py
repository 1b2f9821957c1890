"""Notices that the configuration file changed, so that the daemon can end and be restarted.

The configuration is never reloaded: a supervisor starts the proxy again, with the new file. The
kernel's inotify tells of every write, rename and removal in the directories the path leads through,
so a file replaced by renaming another over it and a ConfigMap whose `..data` link is switched are
noticed too. A replacement with the same content is not a change. `touch` and `chmod` are none
either; a write in place always is one, even of the same bytes.

Use: `changed()` waits for the first change and says what it was; it reports once.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from kubeproxy.kernel.inotify import FileNews, FileWatch, Happening

UPDATED = "content of the proxy server's configuration file was updated"
"""What the daemon says when it ends because of a change."""

_FILE_EVENTS = Happening.MODIFY
_DIRECTORY_EVENTS = Happening.MOVED_FROM | Happening.MOVED_TO | Happening.CREATE | Happening.DELETE
_MOST_LINKS = 40  # the kernel follows no more either


class Change(Enum):
    """What happened to the file."""

    WRITTEN = "written in place"
    RENAMED = "renamed away"
    REPLACED = "replaced by another file"
    SWITCHED = "a link on its path leads to another file"
    DELETED = "deleted"

    @property
    def is_noticed_upstream(self) -> bool:
        """Would upstream's proxy end as well?"""
        return self in (Change.WRITTEN, Change.RENAMED)


class ConfigWatch:
    """Watches one file, from construction on, against the content that was read from it."""

    def __init__(self, path: str | Path, content: bytes) -> None:
        self._path = Path(path)
        self._content = content
        self._watch = FileWatch()
        self._identity: tuple[int, int] = (0, 0)
        self._real = self._path
        self._arm()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._watch.close()

    async def changed(self) -> Change:
        """Wait for a change; one made since the file was read counts."""
        change = self._compare(was_moved=False)
        while change is None:
            change = self._judge(await self._watch.wait())
        return change

    def take(self) -> Change | None:
        """Look at what the kernel reported; the change, if it amounts to one."""
        return self._judge(self._watch.take())

    def _judge(self, news: list[FileNews]) -> Change | None:
        happened = [item.what for item in news if not item.what & Happening.IGNORED]
        if any(what & Happening.MODIFY for what in happened):
            return Change.WRITTEN
        was_moved = any(what & Happening.MOVED_FROM for what in happened)
        return self._compare(was_moved=was_moved) if happened else None

    def _compare(self, *, was_moved: bool) -> Change | None:
        """Is what the path leads to now still what was read?"""
        try:
            content = self._path.read_bytes()
            found = self._path.stat()
        except OSError:
            return Change.RENAMED if was_moved else Change.DELETED
        same_file = (found.st_dev, found.st_ino) == self._identity
        same_place = self._path.resolve() == self._real
        if content == self._content:
            if not (same_file and same_place):
                self._arm()
            return None
        if not same_place:
            return Change.SWITCHED
        return Change.WRITTEN if same_file else Change.REPLACED

    def _arm(self) -> None:
        """Watch the file and every directory on the way to it."""
        for directory in _directories(self._path):
            self._watch.add(directory, _DIRECTORY_EVENTS)
        self._watch.add(self._path, _FILE_EVENTS)
        found = self._path.stat()
        self._identity = (found.st_dev, found.st_ino)
        self._real = self._path.resolve()


def _directories(path: Path) -> list[Path]:
    """Directories in which an entry decides where the path leads: its own, and those of links."""
    found: list[Path] = []
    pending = [Path.cwd() / path]
    for _ in range(_MOST_LINKS):
        if not pending:
            break
        current = pending.pop()
        found.append(current.parent)
        for step in (current, *current.parents):
            if step.is_symlink():
                target = Path(os.path.normpath(step.parent / step.readlink()))
                found.append(step.parent)
                pending.append(target / current.relative_to(step))
                break
    return list(dict.fromkeys(directory for directory in found if directory.is_dir()))
