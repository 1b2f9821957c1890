"""Detects that the configuration file has another content, or cannot be read any more.

inotify reports every write, rename and removal in the directories the path leads through, so a file
that is replaced by renaming another over it and a ConfigMap whose `..data` link is switched are
detected too. Only the content counts: `touch`, `chmod`, a rewrite of the same bytes and a new
directory with the same file are no change. inotify may be exhausted, or blind (a network file
system), so the file is also looked at once a minute.

`ConfigWatch.changed` waits for the next change and returns what is there now. What it means is left
to the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

from kubeproxy.config.load import MOST_BYTES
from kubeproxy.errors import KernelError
from kubeproxy.go.text import format_os_error
from kubeproxy.kernel.files import read_regular
from kubeproxy.kernel.inotify import EventMask, FileWatch

SETTLE_SECONDS = 0.25
"""A file is taken when two looks at this distance find the same: many programs write in pieces."""
_MOST_LOOKS = 20
POLL_SECONDS = 60.0
_FILE_EVENTS = EventMask.MODIFY
_SELF_EVENTS = EventMask.DELETE_SELF | EventMask.MOVE_SELF
_ENTRY_EVENTS = EventMask.MOVED_FROM | EventMask.MOVED_TO | EventMask.CREATE | EventMask.DELETE
_MAX_LINKS = 40  # the kernel follows no more either
_READING = (errno.EINVAL, errno.EFBIG, errno.EAGAIN, errno.EISDIR, errno.EIO)


class FileContent(Struct, frozen=True):
    """What a path leads to: the bytes of a file, or why there are none."""

    content: bytes | None
    problem: str = ""


def is_regular_file(path: str) -> bool:
    """Is this a file that can be read more than once, or nothing at the moment? A pipe is not."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - one call, for its mode
    except OSError:
        return True


def read_content(path: Path) -> FileContent:
    """Read the file at once: a pipe or a device in its place is not waited for."""
    try:
        return FileContent(read_regular(path, MOST_BYTES))
    except OSError as error:
        verb = "read" if error.errno in _READING else "open"
        return FileContent(None, f"{verb} {path}: {format_os_error(error)}")


class ConfigWatch:
    """Watches one file from construction on and compares it with the content that was read."""

    def __init__(self, path: str | Path, content: bytes) -> None:
        self._path = Path(path)
        self._seen = FileContent(content)
        try:
            self._watch: FileWatch | None = FileWatch()
        except KernelError:
            self._watch = None
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
        if self._watch is not None:
            self._watch.close()

    async def changed(self) -> FileContent:
        """Wait until the file is not as it was last seen, and return it."""
        while (found := self.look()) == self._seen:
            await self._event()
        self._seen = await self._settled(found)
        return self._seen

    async def _event(self) -> None:
        """Wait until something happened in the directories, for a minute at most."""
        if self._watch is None:
            await asyncio.sleep(POLL_SECONDS)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._watch.wait(), POLL_SECONDS)

    def look(self) -> FileContent:
        """Return what is there now. Watches follow the path if it leads elsewhere."""
        self._arm()
        return read_content(self._path)

    async def _settled(self, found: FileContent) -> FileContent:
        """Look again until the content stays, for some seconds at most."""
        for _ in range(_MOST_LOOKS):
            await asyncio.sleep(SETTLE_SECONDS)
            before, found = found, self.look()
            if found == before:
                break
        return found

    def _arm(self) -> None:
        """Watch the file and every directory on the way to it, as far as they can be watched."""
        if self._watch is None:
            return
        for path, mask in {**_directories(self._path), self._path: _FILE_EVENTS}.items():
            with contextlib.suppress(KernelError):  # it vanished, or the limit is reached
                self._watch.add(path, mask)


def _directories(path: Path) -> dict[Path, EventMask]:
    """Return the directories that decide where the path leads, and which events of each matter.

    Entries matter in the file's own directory and where a link stands. A directory above matters
    when it is moved or removed itself; what else happens in it (in /tmp, say) does not.
    """
    found: dict[Path, EventMask] = {}
    pending = [Path.cwd() / path]
    for _ in range(_MAX_LINKS):
        if not pending:
            break
        current = pending.pop()
        with_entries = {_nearest(current.parent)}
        for step in (current, *current.parents):
            target = _link_target(step)
            if target is not None:
                with_entries.add(_nearest(step.parent))
                pending.append(target / current.relative_to(step))
                break
        for place in current.parents:
            found.setdefault(place, _SELF_EVENTS)
        found |= dict.fromkeys(with_entries, _SELF_EVENTS | _ENTRY_EVENTS)
    return found


def _link_target(step: Path) -> Path | None:
    """Return where a link leads, or None for what is no link."""
    try:
        return Path(os.path.normpath(step.parent / step.readlink()))
    except OSError:
        return None


def _nearest(directory: Path) -> Path:
    """Return the directory, or the first one above it that exists: there it may come back."""
    places = (directory, *directory.parents)
    return next((p for p in places if os.path.isdir(p)), places[-1])  # noqa: PTH112 - never raises
