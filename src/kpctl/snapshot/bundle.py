"""A support bundle: what a proxy answered, written down in one file that commands read offline.

The file is gzipped JSON, one value per line: a head, the status, the history, what the kernel held
in each family if that was read, and each Service. What is in it is what the inspection API shows
and what `nft` or `iptables-save` would show of ours, so that it holds no credentials.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kpctl.look.moments import instant
from kpctl.snapshot.answers import decode_answer
from kpctl.snapshot.kernel_items import Data, decode_items, encode_items
from kpctl.snapshot.live import snapshot_of
from kpctl.snapshot.types import Snapshot
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import Family
from kubeproxy.inspection.types import VERSION, Held, History, Status
from kubeproxy.modes.base import OpenSocket, Other


class Head(Struct, frozen=True):
    """The first line. `bundle` is the version of the API whose answers follow.

    `findings` are those of `kpctl doctor` on the node, `connections` what `kpctl connections`
    showed there, `sample` one interval of `kpctl top`, and `others` who else was on our hooks; None
    where that was not read. `kernel` counts the families of which the kernel was read.
    """

    bundle: str = VERSION
    findings: list[object] = []
    connections: list[object] | None = None
    sample: dict[str, object] | None = None
    others: Mapping[Family, tuple[Other, ...]] | None = None
    kernel: int = 0


class KernelItems(Struct, frozen=True):
    """What the kernel held of ours in one family, as `kernel_items` writes it.

    `probed` is what the mode had found out about the host, on which rendering depends. `open` are
    the sockets of ours on which something listened.
    """

    family: Family
    items: list[Data]
    probed: Data = None
    open: tuple[OpenSocket, ...] = ()


def write_bundle(snapshot: Snapshot, path: Path, head: Head | None = None) -> int:
    """Write everything that a running proxy has shown, and the kernel if the snapshot has it.

    The file appears when it is complete, and only its owner may read it. Return the number of
    Services. Raises OSError.
    """
    kernel = tuple(_kernel_items(snapshot))
    head = replace(head or Head(), kernel=len(kernel))
    values = (head, snapshot.status, snapshot.history, *kernel, *snapshot.held.values())
    draft = path.with_name(f".{path.name}.draft")
    try:
        with (
            open(draft, "wb", opener=_private) as raw,
            gzip.GzipFile("", "wb", fileobj=raw) as file,
        ):
            for value in values:
                file.write(msgspec.json.encode(value) + b"\n")
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    return len(snapshot.names())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _kernel_items(snapshot: Snapshot) -> Iterator[KernelItems]:
    for family, items in (snapshot.kernel or {}).items():
        sockets = tuple((snapshot.open_sockets or {}).get(family, ()))
        yield KernelItems(family, encode_items(items), snapshot.backends[family].probed(), sockets)


def read_bundle(path: Path) -> Snapshot:
    """Return the snapshot that a bundle holds. Raises ProxyError."""
    try:
        with gzip.open(path, "rb") as file:
            lines = iter(file)
            head = _check(path, next(lines, b""))
            status = decode_answer(next(lines, b""), Status)
            history = decode_answer(next(lines, b""), History)
            kernel = [decode_answer(next(lines, b""), KernelItems) for _ in range(head.kernel)]
            origin = f"{path}, of node {status.node} at {instant(status.now):%Y-%m-%d %H:%M:%S} UTC"
            return _with_kernel(snapshot_of(origin, status, history, _held(lines)), kernel)
    except (OSError, EOFError, KeyError, zlib.error, msgspec.DecodeError) as error:
        raise ProxyError(f"{path}: this is no bundle, or it is damaged ({error})") from error


def read_head(path: Path) -> Head:
    """Return what stands before the answers. Raises ProxyError."""
    try:
        with gzip.open(path, "rb") as file:
            return _check(path, file.readline())
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise ProxyError(f"{path}: this is no bundle, or it is damaged ({error})") from error


def _check(path: Path, line: bytes) -> Head:
    head = decode_answer(line, Head)
    if head.bundle != VERSION:
        raise ProxyError(f"{path}: a bundle of version {head.bundle}, not {VERSION}")
    return head


def _with_kernel(snapshot: Snapshot, kernel: list[KernelItems]) -> Snapshot:
    for each in kernel:
        if each.probed is not None:
            snapshot.backends[each.family].assume_probed(each.probed)
            snapshot.pipelines[each.family].render_all()
    found = {each.family: decode_items(each.items, snapshot.mode) for each in kernel}
    sockets = {each.family: frozenset(each.open) for each in kernel}
    return replace(snapshot, kernel=found or None, open_sockets=sockets or None)


def _held(lines: Iterator[bytes]) -> Iterator[Held]:
    return (decode_answer(line, Held) for line in lines)
