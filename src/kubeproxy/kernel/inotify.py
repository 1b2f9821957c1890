"""Events about changed files: a thin layer over inotify(7), for asyncio.

Callers watch directories rather than files: a file that is replaced (by a rename, or by the switch
of a ConfigMap's link) is another inode afterwards, and only its directory has an event. There is no
policy here: an event holds what happened to which name in which directory, and what it means is
left to the caller. The calls go through ctypes because Python's standard library has no inotify.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from enum import IntFlag
from pathlib import Path

from msgspec import Struct

from kubeproxy.errors import KernelError


class EventMask(IntFlag):
    """What happened, as in inotify(7), without the IN_ prefix."""

    MODIFY = 0x2
    ATTRIB = 0x4
    CLOSE_WRITE = 0x8
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    OVERFLOW = 0x4000
    IGNORED = 0x8000


CHANGES = (
    EventMask.CLOSE_WRITE
    | EventMask.MOVED_FROM
    | EventMask.MOVED_TO
    | EventMask.CREATE
    | EventMask.DELETE
    | EventMask.DELETE_SELF
    | EventMask.MOVE_SELF
)
"""Everything after which content may differ. A write counts when the writer has closed the file."""

_HEADER = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class FileEvent(Struct, frozen=True):
    """An event for `name` in `directory`. An empty name stands for the watched path itself."""

    directory: Path
    name: str
    mask: EventMask


class FileWatch:
    """An inotify instance: events about the entries of some directories. A context manager."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise self._failure("inotify is not available")
        self._directories: dict[int, Path] = {}

    def __enter__(self) -> FileWatch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file descriptor. Closing twice is harmless."""
        if self._fd >= 0:
            # Outside of a running loop there is no reader to remove.
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def add(self, path: Path, mask: EventMask = CHANGES) -> None:
        """Watch this directory (or file). Adding it twice is harmless. Raises KernelError."""
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(path), int(mask))
        if watch < 0:
            raise self._failure(f"cannot watch {path}")
        self._directories[watch] = path

    def _failure(self, what: str) -> KernelError:
        errno = ctypes.get_errno()
        return KernelError(f"{what}: {os.strerror(errno)}", errno=errno)

    def take(self) -> list[FileEvent]:
        """Return the events that are waiting, perhaps none."""
        try:
            return list(self._parse(os.read(self._fd, _READ_BYTES)))
        except BlockingIOError:
            return []

    async def wait(self) -> list[FileEvent]:
        """Wait for the next events. Several are returned at once if they came together."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_reader(self._fd, wake)
        try:
            await ready
        finally:
            if self._fd >= 0:
                loop.remove_reader(self._fd)
        return self.take()

    def _parse(self, data: bytes) -> Iterator[FileEvent]:
        offset = 0
        while offset < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            # The upper half holds flags of the request and IN_ISDIR, not what happened.
            happened = EventMask(mask & 0xFFFF)
            directory = self._directories.get(watch, Path())
            if happened & EventMask.IGNORED:
                # The kernel has removed this watch and may give its number to another one.
                self._directories.pop(watch, None)
            yield FileEvent(directory, name, happened)
