"""Detects that the configuration file changed, so that the daemon can end and be restarted.

The configuration is never reloaded: a supervisor starts the proxy again, with the new file. inotify
reports every write, rename and removal in the directories the path leads through, so a file that is
replaced by renaming another over it and a ConfigMap whose `..data` link is switched are detected
too. A replacement with the same content is not a change, and neither are `touch` and `chmod`. A
write in place always is one, even of the same bytes, as it is upstream.

`ConfigWatch.changed` waits for the first change and returns what it was. Ending the process is left
to the caller.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from kubeproxy.kernel.inotify import EventMask, FileEvent, FileWatch

UPDATED = "content of the proxy server's configuration file was updated"
"""The error with which the daemon ends because of a change."""

_FILE_EVENTS = EventMask.MODIFY
_DIRECTORY_EVENTS = EventMask.MOVED_FROM | EventMask.MOVED_TO | EventMask.CREATE | EventMask.DELETE
_MAX_LINKS = 40  # the kernel follows no more either


class FileChange(Enum):
    """What happened to the file. Upstream notices only the first two."""

    WRITTEN = "written in place"
    RENAMED = "renamed away"
    REPLACED = "replaced by another file"
    SWITCHED = "a link on its path leads to another file"
    DELETED = "deleted"


class ConfigWatch:
    """Watches one file from construction on and compares it with the content that was read."""

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

    async def changed(self) -> FileChange:
        """Wait for a change and return it. One made since the file was read counts."""
        change = self._compare(was_moved=False)
        while change is None:
            change = self._classify(await self._watch.wait())
        return change

    def take(self) -> FileChange | None:
        """Return the change that the waiting inotify events amount to, or None."""
        return self._classify(self._watch.take())

    def _classify(self, events: list[FileEvent]) -> FileChange | None:
        # IGNORED only follows the removal of a watch, which has its own event.
        masks = [event.mask for event in events if not event.mask & EventMask.IGNORED]
        if any(mask & EventMask.MODIFY for mask in masks):
            return FileChange.WRITTEN
        was_moved = any(mask & EventMask.MOVED_FROM for mask in masks)
        return self._compare(was_moved=was_moved) if masks else None

    def _compare(self, *, was_moved: bool) -> FileChange | None:
        """Compare what the path leads to now with what was read. Return the change, or None."""
        try:
            content = self._path.read_bytes()
            found = self._path.stat()
        except OSError:
            return FileChange.RENAMED if was_moved else FileChange.DELETED
        same_file = (found.st_dev, found.st_ino) == self._identity
        same_place = self._path.resolve() == self._real
        if content == self._content:
            if not (same_file and same_place):
                self._arm()  # the old watches are on a file that nothing points to any more
            return None
        if not same_place:
            return FileChange.SWITCHED
        return FileChange.WRITTEN if same_file else FileChange.REPLACED

    def _arm(self) -> None:
        """Watch the file and every directory on the way to it. Raises KernelError."""
        for directory in _directories(self._path):
            self._watch.add(directory, _DIRECTORY_EVENTS)
        self._watch.add(self._path, _FILE_EVENTS)
        found = self._path.stat()
        self._identity = (found.st_dev, found.st_ino)
        self._real = self._path.resolve()


def _directories(path: Path) -> list[Path]:
    """Return the directories whose entries decide where the path leads: its own, and links'."""
    found: list[Path] = []
    pending = [Path.cwd() / path]
    for _ in range(_MAX_LINKS):
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
