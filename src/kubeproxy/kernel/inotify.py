"""Hearing about changes of files: a thin layer over inotify, for asyncio.

Watches directories, because a file that is replaced (rename, a ConfigMap's symlink switch) is
another file afterwards, and only its directory tells. No policy: says which name in which
directory something happened to.
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


class Happening(IntFlag):
    """What the kernel tells (`inotify(7)`)."""

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
    Happening.CLOSE_WRITE
    | Happening.MOVED_FROM
    | Happening.MOVED_TO
    | Happening.CREATE
    | Happening.DELETE
    | Happening.DELETE_SELF
    | Happening.MOVE_SELF
)
"""Everything after which content may be different; a write counts when the writer is done."""

_HEADER = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class FileNews(Struct, frozen=True):
    """Something happened to `name` in `directory`; an empty name is the watched path itself."""

    directory: Path
    name: str
    what: Happening


class FileWatch:
    """News about the entries of some directories. Use as a context manager."""

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
        if self._fd >= 0:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def add(self, path: Path, what: Happening = CHANGES) -> None:
        """Start hearing about this directory (or file); doing so twice is harmless."""
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(path), int(what))
        if watch < 0:
            raise self._failure(f"cannot watch {path}")
        self._directories[watch] = path

    def _failure(self, what: str) -> KernelError:
        errno = ctypes.get_errno()
        return KernelError(f"{what}: {os.strerror(errno)}", errno=errno)

    def take(self) -> list[FileNews]:
        """The news that are waiting, perhaps none."""
        try:
            return list(self._parse(os.read(self._fd, _READ_BYTES)))
        except BlockingIOError:
            return []

    async def wait(self) -> list[FileNews]:
        """The next news; several at once if they came together."""
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

    def _parse(self, data: bytes) -> Iterator[FileNews]:
        offset = 0
        while offset < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            what = Happening(mask & 0xFFFF)
            directory = self._directories.get(watch, Path())
            if what & Happening.IGNORED:
                self._directories.pop(watch, None)
            yield FileNews(directory, name, what)
