"""The small file system a kernel starts with: busybox, modules, and a program that finds the root.

Pure but for reading the files that go into it. The format is the "newc" archive of cpio, described
in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_DIRECTORY, _PROGRAM = 0o040755, 0o100755
_FOLDERS = ("bin", "dev", "modules", "host", "changes", "root")


def pack_initramfs(busybox: bytes, init: str, modules: Sequence[bytes]) -> bytes:
    """An archive in which modules are numbered in the order in which they must be loaded."""
    parts = [_member(name, _DIRECTORY, b"") for name in _FOLDERS]
    parts.append(_member("bin/busybox", _PROGRAM, busybox))
    parts.append(_member("init", _PROGRAM, init.encode()))
    for number, module in enumerate(modules):
        parts.append(_member(f"modules/{number:03}.ko", _PROGRAM, module))
    return b"".join([*parts, _member("TRAILER!!!", 0, b"")])


def _member(name: str, mode: int, data: bytes) -> bytes:
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name.encode() + b"\0") + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def read_modules(folder: Path, names: Sequence[str]) -> Iterator[bytes]:
    """The files of these modules and of all they depend on, uncompressed, dependencies first.

    A name that is not there is left out: it is built into the kernel, or this release has not got
    it.
    """
    dependencies = _dependencies((folder / "modules.dep").read_text())
    done: dict[str, None] = {}
    for name in names:
        for path in _in_order(name.replace("-", "_"), dependencies):
            done[path] = None
    for path in done:
        yield _read(folder / path)


def _dependencies(text: str) -> Mapping[str, tuple[str, ...]]:
    """By the name of a module its file and the files it needs, those it needs first being last."""
    lines = (line.partition(":") for line in text.splitlines())
    return {_module_name(path): (path, *needs.split()) for path, _, needs in lines}


def _in_order(name: str, dependencies: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    yield from reversed(dependencies.get(name, ()))


def _module_name(path: str) -> str:
    return Path(path).name.partition(".")[0].replace("-", "_")


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    return gzip.decompress(data) if path.suffix == ".gz" else data
