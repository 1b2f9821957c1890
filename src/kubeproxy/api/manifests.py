"""A source of objects without a cluster: a watched file or directory of YAML or JSON manifests.

A file is read when its writer has closed it. A file that cannot be read or parsed, or that is
empty, is taken for half-written: it is named in the log and its earlier objects stay. When a file
is deleted, so are its objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

from kubeproxy.api import objects
from kubeproxy.api.manifest_text import Key, Manifest, parse_manifest
from kubeproxy.api.source import Delete, Inbox, Kind, Object, Synced, Undecodable, Upsert
from kubeproxy.errors import ConfigError, ObjectError
from kubeproxy.go.text import format_os_error
from kubeproxy.kernel.inotify import CHANGES, EventMask, FileEvent, FileWatch
from kubeproxy.logs import get_logger

logger = get_logger(__name__)

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
SETTLE_SECONDS = 0.005
"""One save causes several file events. After this pause a file is read once for all of them."""

_DATA_LINK = "..data"
"""The link by which a mounted ConfigMap points to its current version."""


class ManifestSource:
    """A `Source` that delivers the objects of a file or directory, and their later changes."""

    def __init__(self, path: Path) -> None:
        try:
            path.stat()
        except OSError as error:
            raise ConfigError(f"--manifests {path}: {format_os_error(error)}") from error
        self._path = path
        self._directory = path if path.is_dir() else path.parent
        self._files: dict[Path, Manifest] = {}
        self._signatures: dict[Path, tuple[int, int, int]] = {}
        self._clashes: frozenset[Undecodable] = frozenset()
        self._unreported: list[Undecodable] = []

    @property
    def needs_node(self) -> bool:
        return False

    @property
    def poster(self) -> None:
        return None

    async def find_node(self, name: str, *, needs_pod_cidrs: bool) -> objects.Node | None:
        """Return the Node of this name in the manifests. Nothing is waited for."""
        found = self._scan(None).get((Kind.NODE, "", name))
        return found if isinstance(found, objects.Node) else None

    async def close(self) -> None:
        return None

    def load(self) -> Mapping[Key, Object]:
        """Read everything once and log what cannot be used. Return the usable objects."""
        found = self._scan(None)
        for problem in self._take_unreported():
            kind, name = problem.kind.value, problem.name
            logger.error(problem.reason, "Object is left out", kind=kind, name=name)
        return found

    async def run(self, inbox: Inbox, node_name: str) -> None:
        """Deliver what is there, then what changes, until cancelled. All Nodes are delivered."""
        with FileWatch() as watch:
            self._add_watches(watch)
            held = self._deliver({}, self._scan(None), inbox)
            for kind in Kind:
                inbox.send(Synced(kind))
            while True:
                names = self._changed(await watch.wait())
                if names is None or names:
                    await asyncio.sleep(SETTLE_SECONDS)
                    self._add_watches(watch)
                    held = self._deliver(held, self._scan(names), inbox)

    def _add_watches(self, watch: FileWatch) -> None:
        """Watch the directory, and its parent for another directory that takes its place."""
        for directory in dict.fromkeys((self._path.parent, self._directory)):
            if directory.is_dir():
                watch.add(directory, CHANGES | EventMask.ATTRIB)

    def _deliver(
        self, held: Mapping[Key, Object], wanted: Mapping[Key, Object], inbox: Inbox
    ) -> Mapping[Key, Object]:
        """Send the difference between what the inbox holds and what is wanted."""
        for problem in self._take_unreported():
            inbox.send(problem)
        for key, found in wanted.items():
            if held.get(key) != found:
                inbox.send(Upsert(key[0], found))
        for kind, namespace, name in held.keys() - wanted.keys():
            inbox.send(Delete(kind, namespace, name))
        return wanted

    def _take_unreported(self) -> list[Undecodable]:
        unreported, self._unreported = self._unreported, []
        return unreported

    def _changed(self, events: list[FileEvent]) -> set[str] | None:
        """Return the names of the files to read again, or None for all.

        Only files with an event count. Another one that is being written right now keeps its
        earlier objects until its writer closes it.
        """
        names: set[str] = set()
        for event in events:
            is_inside = event.directory == self._directory
            if self._concerns_all(event, is_inside):
                return None
            if is_inside and self._is_complete(event):
                names.add(event.name)
        return names if self._path == self._directory else names & {self._path.name}

    def _concerns_all(self, event: FileEvent, is_inside: bool) -> bool:
        if event.mask & EventMask.OVERFLOW:
            return True  # The kernel dropped events.
        # The directory itself, or a ConfigMap that points to its next version.
        return event.name in ("", _DATA_LINK) if is_inside else event.name == self._directory.name

    def _is_complete(self, event: FileEvent) -> bool:
        """Can the file be read? A new file only when its writer closes it, a link at once."""
        if event.mask & ~(EventMask.CREATE | EventMask.MODIFY):
            return True
        return (event.directory / event.name).is_symlink()

    def _paths(self) -> list[Path]:
        if self._path != self._directory:
            return [self._path] if self._path.exists() else []
        if not self._directory.is_dir():
            return []
        return sorted(
            path
            for path in self._directory.iterdir()
            if path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()
        )

    def _scan(self, names: Collection[str] | None) -> Mapping[Key, Object]:
        """Read the changed files among these names, or among all. Return all usable objects."""
        try:
            paths = self._paths()
        except OSError as error:
            logger.error(error, "Manifests are left as they were before", path=str(self._path))
            return self._merge()
        for gone in self._files.keys() - set(paths):
            del self._files[gone]
            self._signatures.pop(gone, None)
        for path in paths:
            if (names is None or path.name in names) and self._note_change(path):
                self._read(path)
        return self._merge()

    def _note_change(self, path: Path) -> bool:
        """Was the file written, replaced or made readable since it was last noted?"""
        try:
            status = path.stat()
        except OSError:
            return True  # Reading it will log the reason.
        signature = (status.st_ino, status.st_size, status.st_ctime_ns)
        if self._signatures.get(path) == signature:
            return False
        self._signatures[path] = signature
        return True

    def _read(self, path: Path) -> None:
        try:
            manifest = parse_manifest(path.read_text("utf-8"))
        except (OSError, ObjectError, UnicodeDecodeError) as error:
            logger.error(error, "Manifest is left as it was before", file=str(path))
            return
        before = self._files.get(path, Manifest())
        self._unreported += [p for p in manifest.problems if p not in before.problems]
        self._files[path] = _with_kept(manifest, before)

    def _merge(self) -> Mapping[Key, Object]:
        """Return the objects of all files. Of objects with one name the first file's wins."""
        merged: dict[Key, Object] = {}
        clashes: list[Undecodable] = []
        for path in sorted(self._files):
            for key, found in self._files[path].objects.items():
                if key in merged:
                    text = f"{path} holds another object of this name; the first file wins"
                    clashes.append(Undecodable(key[0], f"{key[1]}/{key[2]}", text))
                else:
                    merged[key] = found
        self._unreported += [clash for clash in clashes if clash not in self._clashes]
        self._clashes = frozenset(clashes)
        return merged


def _with_kept(manifest: Manifest, before: Manifest) -> Manifest:
    """Keep the earlier version of each object that cannot be decoded now."""
    bad = {(problem.kind, problem.name) for problem in manifest.problems}
    kept = {
        key: found
        for key, found in before.objects.items()
        if key not in manifest.objects
        and ((key[0], f"{key[1]}/{key[2]}") in bad or (key[0], key[2]) in bad)
    }
    return Manifest({**manifest.objects, **kept}, manifest.problems)
