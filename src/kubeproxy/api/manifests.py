"""Objects without a cluster: a file or directory of YAML or JSON manifests, watched.

A file counts when its writer is done with it. A file that cannot be read or parsed, or that is
empty, is taken for half-written: it is named in the log and what it said before stays. A file
that is gone takes its objects with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

from kubeproxy.api.manifest_text import Key, Manifest, parse_manifest
from kubeproxy.api.source import Delete, Inbox, Kind, Object, Synced, Undecodable, Upsert
from kubeproxy.errors import ConfigError, ObjectError
from kubeproxy.kernel.inotify import CHANGES, FileNews, FileWatch, Happening
from kubeproxy.logs import get_logger

logger = get_logger(__name__)

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
SETTLE_SECONDS = 0.005
"""News about one save comes in several pieces; reading once is enough."""

_DATA_LINK = "..data"
"""The link by which a mounted ConfigMap points to its current version."""


class ManifestSource:
    """Delivers the objects of a file or directory, and every later change of them."""

    def __init__(self, path: Path) -> None:
        try:
            path.stat()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(f"--manifests {path}: {reason}") from error
        self._path = path
        self._directory = path if path.is_dir() else path.parent
        self._files: dict[Path, Manifest] = {}
        self._signatures: dict[Path, tuple[int, int, int]] = {}
        self._clashes: frozenset[Undecodable] = frozenset()
        self._untold: list[Undecodable] = []

    def load(self) -> Mapping[Key, Object]:
        """Read everything and log what cannot be used; the objects that hold now."""
        found = self.objects()
        for problem in self._take_untold():
            kind, name = problem.kind.value, problem.name
            logger.error(problem.reason, "Object is left out", kind=kind, name=name)
        return found

    def objects(self) -> Mapping[Key, Object]:
        """The objects that hold now; what cannot be used is told by `load` or `run`."""
        return self._scan(None)

    async def run(self, inbox: Inbox) -> None:
        """Deliver what is there, then what changes, until cancelled."""
        with FileWatch() as watch:
            self._listen(watch)
            held = self._deliver({}, self._scan(None), inbox)
            for kind in Kind:
                inbox.send(Synced(kind))
            while True:
                names = self._changed(await watch.wait())
                if names is None or names:
                    await asyncio.sleep(SETTLE_SECONDS)
                    self._listen(watch)
                    held = self._deliver(held, self._scan(names), inbox)

    def _listen(self, watch: FileWatch) -> None:
        """Hear about the directory, and about another one that takes its place."""
        for directory in dict.fromkeys((self._path.parent, self._directory)):
            if directory.is_dir():
                watch.add(directory, CHANGES | Happening.ATTRIB)

    def _deliver(
        self, held: Mapping[Key, Object], wanted: Mapping[Key, Object], inbox: Inbox
    ) -> Mapping[Key, Object]:
        for problem in self._take_untold():
            inbox.send(problem)
        for key, found in wanted.items():
            if held.get(key) != found:
                inbox.send(Upsert(key[0], found))
        for kind, namespace, name in held.keys() - wanted.keys():
            inbox.send(Delete(kind, namespace, name))
        return wanted

    def _take_untold(self) -> list[Undecodable]:
        untold, self._untold = self._untold, []
        return untold

    def _changed(self, news: list[FileNews]) -> set[str] | None:
        """Names of the files to look at again; None means all.

        Only those in the news: a neighbour that is being written right now keeps what it said
        until its writer closes it.
        """
        names: set[str] = set()
        for item in news:
            is_inside = item.directory == self._directory
            if self._is_about_all(item, is_inside):
                return None
            if is_inside and self._is_settled(item):
                names.add(item.name)
        return names if self._path == self._directory else names & {self._path.name}

    def _is_about_all(self, item: FileNews, is_inside: bool) -> bool:
        if item.what & Happening.OVERFLOW:
            return True
        # The directory itself, or a ConfigMap that points to its next version.
        return item.name in ("", _DATA_LINK) if is_inside else item.name == self._directory.name

    def _is_settled(self, item: FileNews) -> bool:
        """A file that is made counts when its writer closes it; a link counts at once."""
        if item.what & ~(Happening.CREATE | Happening.MODIFY):
            return True
        return (item.directory / item.name).is_symlink()

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
        """Look at the files of these names again, or at all; the objects that hold now."""
        try:
            paths = self._paths()
        except OSError as error:
            logger.error(error, "Manifests are left as they were before", path=str(self._path))
            return self._merge()
        for gone in self._files.keys() - set(paths):
            del self._files[gone]
            self._signatures.pop(gone, None)
        for path in paths:
            if (names is None or path.name in names) and self._is_new(path):
                self._read(path)
        return self._merge()

    def _is_new(self, path: Path) -> bool:
        """Has the file been written, replaced or made readable since it was last read?"""
        try:
            status = path.stat()
        except OSError:
            return True  # Reading it gives the message.
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
        self._untold += [p for p in manifest.problems if p not in before.problems]
        self._files[path] = _keeping_bad(manifest, before)

    def _merge(self) -> Mapping[Key, Object]:
        merged: dict[Key, Object] = {}
        clashes: list[Undecodable] = []
        for path in sorted(self._files):
            for key, found in self._files[path].objects.items():
                if key in merged:
                    text = f"{path} holds another object of this name; the first file wins"
                    clashes.append(Undecodable(key[0], f"{key[1]}/{key[2]}", text))
                else:
                    merged[key] = found
        self._untold += [clash for clash in clashes if clash not in self._clashes]
        self._clashes = frozenset(clashes)
        return merged


def _keeping_bad(manifest: Manifest, before: Manifest) -> Manifest:
    """What was known under the name of an object that is bad now stays."""
    bad = {(problem.kind, problem.name) for problem in manifest.problems}
    kept = {
        key: found
        for key, found in before.objects.items()
        if key not in manifest.objects
        and ((key[0], f"{key[1]}/{key[2]}") in bad or (key[0], key[2]) in bad)
    }
    return Manifest({**manifest.objects, **kept}, manifest.problems)
