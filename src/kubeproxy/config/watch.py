"""Notices that the configuration file changed, so that the daemon can end and be restarted.

The configuration is never reloaded: a supervisor starts the proxy again, with the new file. The
kernel's inotify tells of every write, rename and removal in the directories the path leads through,
so a file replaced by renaming another over it and a ConfigMap whose `..data` link is switched are
noticed too. A replacement with the same content is not a change. `touch` and `chmod` are none
either; a write in place always is one, even of the same bytes.

Use: `changed()` waits for the first change and says what it was; it reports once.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from kubeproxy.errors import ConfigError

UPDATED = "content of the proxy server's configuration file was updated"
"""What the daemon says when it ends because of a change."""

_MODIFY, _MOVED_FROM, _MOVED_TO = 0x2, 0x40, 0x80
_CREATE, _DELETE, _OVERFLOW = 0x100, 0x200, 0x4000
_FILE_EVENTS = _MODIFY
_DIRECTORY_EVENTS = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_EVENT = struct.Struct("iIII")
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
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
        self._inotify = _Inotify()
        self._file = 0
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
        self._inotify.close()

    async def changed(self) -> Change:
        """Wait for a change; one made since the file was read counts."""
        change = self._compare(frozenset())
        while change is None:
            await _readable(self._inotify.descriptor)
            change = self.take()
        return change

    def take(self) -> Change | None:
        """Look at what the kernel reported; the change, if it amounts to one."""
        kinds = frozenset(self._kinds())
        if "written" in kinds:
            return Change.WRITTEN
        return self._compare(kinds) if kinds else None

    def _kinds(self) -> Iterator[str]:
        for watch, mask in self._inotify.read():
            if watch == self._file and mask & _MODIFY:
                yield "written"
            elif mask & _MOVED_FROM:
                yield "moved"
            elif mask & (_DIRECTORY_EVENTS | _OVERFLOW):
                yield "other"

    def _compare(self, kinds: frozenset[str]) -> Change | None:
        """Is what the path leads to now still what was read?"""
        try:
            content = self._path.read_bytes()
            found = self._path.stat()
        except OSError:
            return Change.RENAMED if "moved" in kinds else Change.DELETED
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
            self._inotify.add(directory, _DIRECTORY_EVENTS)
        self._file = self._inotify.add(self._path, _FILE_EVENTS)
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


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class _Inotify:
    """The three system calls, through the C library: Python has no binding of its own."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._library.inotify_init1(_FLAGS)
        if self.descriptor < 0:
            raise ConfigError(f"cannot watch the configuration file: {_last_error()}")

    def add(self, path: Path, mask: int) -> int:
        """Watch a path; the number events will carry."""
        watch = int(self._library.inotify_add_watch(self.descriptor, os.fsencode(path), mask))
        if watch < 0:
            raise ConfigError(f"cannot watch {path}: {_last_error()}")
        return watch

    def read(self) -> Iterator[tuple[int, int]]:
        """Watch and mask of every event that is waiting."""
        try:
            data = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return
        position = 0
        while position < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size + length
            yield watch, mask

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _last_error() -> str:
    return os.strerror(ctypes.get_errno())
