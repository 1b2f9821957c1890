"""A source of objects without a cluster: a watched file or directory of YAML or JSON manifests.

A file is read when its writer has closed it, also behind a link. A file that cannot be parsed, or
that is empty, is taken for half-written: it is named in the log and its earlier objects stay. When
a file is deleted, so are its objects.

What cannot be read is tried again: a file, or the directory. A directory that vanishes, becomes
unreadable or is replaced by an empty one (a volume that was unmounted looks like this) keeps its
last objects until there are manifests again. Where the kernel cannot watch, the files are looked at
every few seconds.

Host names that Services of the short form name are looked up (`names`); another address of one is
a change like one in a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from kubeproxy.api import objects
from kubeproxy.api.backoff import Backoff, BackoffPolicy
from kubeproxy.api.manifest_links import Place, is_dangling, places_of, real_path
from kubeproxy.api.manifest_ports import unserved_targets
from kubeproxy.api.manifest_text import Key, Manifest, Short, decode_text, parse_manifest
from kubeproxy.api.names import Names
from kubeproxy.api.short_form import NAMESPACE
from kubeproxy.api.short_objects import service_objects
from kubeproxy.api.source import (
    CollectionState,
    Delete,
    Inbox,
    Kind,
    Object,
    Seen,
    Synced,
    Undecodable,
    Upsert,
)
from kubeproxy.errors import ConfigError, KernelError
from kubeproxy.go.text import format_os_error
from kubeproxy.kernel.files import read_regular
from kubeproxy.kernel.inotify import CHANGES, EventMask, FileEvent, FileWatch
from kubeproxy.logs import get_logger

logger = get_logger(__name__)

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_ENDINGS = tuple(SUFFIXES)
SETTLE_SECONDS = 0.005
"""One save causes several file events. After this pause a file is read once for all of them."""
RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=5.0, jitter=0.0, reset_seconds=30.0)
"""How long to wait before something that could not be read is tried again."""
MOST_BYTES = 100 << 20
"""As large as one file may be. Tens of thousands of Services fit in."""
NAMES_SECONDS = 3.0
"""How long new host names are waited for: a Service without its endpoints refuses connections."""
LOOK_SECONDS = 5.0
"""How often files are looked at where the kernel cannot watch them."""

_DATA_LINK = "..data"
"""The link by which a mounted ConfigMap points to its current version."""


class _Lost(OSError):
    """The directory is there, but it is not the one that held the manifests."""


class ManifestSource:
    """A `Source` that delivers the objects of a file or directory, and their later changes."""

    def __init__(self, path: Path, health_check: str = "", names: Names | None = None) -> None:
        """`health_check` is the annotation of Services that have none of their own."""
        try:
            path.stat()
        except (OSError, ValueError) as error:
            reason = format_os_error(error) if isinstance(error, OSError) else str(error)
            raise ConfigError(f"--manifests {path}: {reason}") from error
        self._path = path
        self._health_check = health_check
        self._directory = path if path.is_dir() else path.parent
        self._files: dict[Path, Manifest] = {}
        self._signatures: dict[Path, tuple[int, ...]] = {}
        self._identity: tuple[int, int] | None = None
        self._clashes: frozenset[Undecodable] = frozenset()
        self._unreported: list[Undecodable] = []
        self._notes: frozenset[str] = frozenset()
        self._failures: dict[Path, str] = {}
        self._links: dict[Path, tuple[Place, ...]] = {}
        self._own_places: tuple[Place, ...] = ()
        self._can_watch = True
        self._started = time.monotonic()
        self._backoff = Backoff(RETRY)
        self._names = names or Names()

    @property
    def needs_node(self) -> bool:
        return False

    @property
    def poster(self) -> None:
        return None

    @property
    def files(self) -> tuple[str, ...]:
        return (str(self._path),)

    @property
    def place(self) -> str:
        return str(self._path)

    def collections(self) -> list[CollectionState]:
        """The files as one collection. What cannot be read is its problem."""
        failures = (*self._failures.items(), *self._names.failures.items())
        problem = "; ".join(f"{place}: {reason}" for place, reason in failures)
        seen = Seen.FAILING if problem or not self._can_watch else Seen.WATCHING
        return [CollectionState("manifests", seen, time.monotonic() - self._started, problem)]

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
        async with self._resolving():
            await self._follow(inbox)

    @contextlib.asynccontextmanager
    async def _resolving(self) -> AsyncIterator[None]:
        """Look up host names meanwhile."""
        task = asyncio.create_task(self._names.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self, inbox: Inbox) -> None:
        with ExitStack() as stack:
            watch = self._open_watch(stack)
            self._add_watches(watch)
            held = self._deliver({}, await self._scan_aside(None), inbox)
            # The scan has found the links, whose targets are watched from now on.
            self._add_watches(watch)
            for kind in Kind:
                inbox.send(Synced(kind))
            while True:
                names = await self._changes(watch)
                if self._names.changed.is_set():
                    self._names.changed.clear()
                    held = self._deliver(held, self._merge(), inbox)
                if names is None or names:
                    await asyncio.sleep(SETTLE_SECONDS)
                    self._add_watches(watch)
                    held = self._deliver(held, await self._scan_aside(names), inbox)
                    self._add_watches(watch)

    # --- watching ---

    def _open_watch(self, stack: ExitStack) -> FileWatch | None:
        try:
            return stack.enter_context(FileWatch())
        except KernelError as error:
            self._report_blindness(error)
            return None

    def _add_watches(self, watch: FileWatch | None) -> None:
        """Watch the directory, its parent for another one in its place, and targets of links."""
        self._own_places = places_of(self._path)
        if watch is None:
            return
        directories = [directory for directory, _ in self._own_places]
        directories.append(self._watched_directory)
        directories += (place[0] for places in self._links.values() for place in places)
        for directory in dict.fromkeys(directories):
            try:
                watch.add(directory, CHANGES | EventMask.ATTRIB)
            except KernelError as error:
                # What is not there is in `_failures`, and tried again.
                if directory.is_dir() and os.access(directory, os.R_OK):
                    self._report_blindness(error)

    def _report_blindness(self, error: KernelError) -> None:
        if self._can_watch:
            logger.error(
                error,
                "Manifests cannot be watched and are looked at every few seconds; raise"
                " fs.inotify.max_user_watches and fs.inotify.max_user_instances",
                path=str(self._path),
            )
        self._can_watch = False

    @property
    def _watched_directory(self) -> Path:
        """The directory of the manifests, without links in its path."""
        real = real_path(self._own_places)
        return real if self._path == self._directory else real.parent

    async def _changes(self, watch: FileWatch | None) -> set[str] | None:
        """Wait for changes. Return the names of the files to read again, or None for all."""
        if watch is None:
            await asyncio.sleep(LOOK_SECONDS)
            return None
        events = asyncio.ensure_future(watch.wait())
        addresses = asyncio.ensure_future(self._names.changed.wait())
        try:
            ended, _ = await asyncio.wait(
                (events, addresses),
                timeout=self._retry_seconds(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if events in ended:
                return self._changed(events.result())
            return set() if ended else None
        finally:
            # Nothing that the watch has read is lost: it is cancelled only while it waits.
            for waiting in (events, addresses):
                waiting.cancel()
            await asyncio.wait((events, addresses))

    def _retry_seconds(self) -> float | None:
        """Return how long to wait at most, or None if nothing is to be tried again."""
        if self._failures:
            return self._backoff.fail(asyncio.get_running_loop().time(), 0.0)
        return None if self._can_watch else LOOK_SECONDS

    def _changed(self, events: list[FileEvent]) -> set[str] | None:
        """Return the names of the files to read again, or None for all.

        Only files with an event count. Another one that is being written right now keeps its
        earlier objects until its writer closes it.
        """
        names: set[str] = set()
        for event in events:
            if self._concerns_all(event):
                return None
            if self._is_complete(event):
                names |= self._names_behind(event)
        return names if self._path == self._directory else names & {self._path.name}

    def _concerns_all(self, event: FileEvent) -> bool:
        if event.mask & EventMask.OVERFLOW or not event.name:
            return True  # The kernel dropped events, or a watched directory itself changed.
        # A ConfigMap that points to its next version, or what our path leads through.
        is_inside = event.directory == self._watched_directory
        if is_inside and event.name == _DATA_LINK:
            return True
        is_way = (event.directory, event.name) in self._own_places
        return is_way and not (is_inside and self._path != self._directory)

    def _names_behind(self, event: FileEvent) -> set[str]:
        """Return the names of the files that lead to what has changed."""
        place = (event.directory, event.name)
        names = {path.name for path, places in self._links.items() if place in places}
        if event.directory == self._watched_directory:
            names.add(self._path.name if place in self._own_places else event.name)
        return names

    def _is_complete(self, event: FileEvent) -> bool:
        """Can the file be read? A new file only when its writer closes it, a link at once."""
        if event.mask & ~(EventMask.CREATE | EventMask.MODIFY):
            return True
        return (event.directory / event.name).is_symlink()

    # --- delivering ---

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

    # --- reading ---

    def _paths(self) -> list[Path]:
        """Return the files there are. Raises OSError if that cannot be found out."""
        if self._path != self._directory:
            if is_dangling(self._path) or self._path.exists():
                return [self._path]
            self._directory.stat()
            return []
        # Names first: a file that comes now has an event.
        with os.scandir(self._directory) as entries:
            names = [entry.name for entry in entries if _is_manifest(entry)]
        found = [self._directory / name for name in sorted(names)]
        status = self._directory.stat()
        identity = (status.st_dev, status.st_ino)
        if not found and self._files and identity != self._identity:
            raise _Lost("the directory was replaced by another one without manifests")
        self._identity = identity
        return found

    async def _scan_aside(self, names: Collection[str] | None) -> Mapping[Key, Object]:
        """Scan in a thread: a large file, or a disk that does not answer, must not stop the rest.

        The caller waits for the result, so that nothing else touches our state meanwhile.
        """
        found = await asyncio.to_thread(self._scan, names)
        self._names.want(self._wanted_names())
        if not self._wanted_names():
            return found
        await self._names.settle(NAMES_SECONDS)
        self._names.changed.clear()
        return self._merge()

    def _wanted_names(self) -> set[str]:
        shorts = (short for manifest in self._files.values() for short in manifest.shorts.values())
        return {name for short in shorts for name in short.service.host_names}

    def _scan(self, names: Collection[str] | None) -> Mapping[Key, Object]:
        """Read the changed files among these names, or among all. Return all usable objects."""
        try:
            paths = self._paths()
        except OSError as error:
            self._fail(self._directory, error)
            return self._merge()
        self._succeed(self._directory)
        for gone in self._files.keys() - set(paths):
            del self._files[gone]
            self._signatures.pop(gone, None)
        for gone in self._failures.keys() - set(paths):
            del self._failures[gone]
        self._links = {path: self._links[path] for path in paths if path in self._links}
        for path in paths:
            if names is None or path.name in names or path in self._failures:
                self._look_at(path)
        return self._merge()

    def _look_at(self, path: Path) -> None:
        if path.is_symlink():
            self._links[path] = places_of(path)
        else:
            self._links.pop(path, None)
        if self._note_change(path):
            self._read(path)

    def _note_change(self, path: Path) -> bool:
        """Was the file written, replaced or made readable since it was last noted?"""
        try:
            status = path.stat()
        except OSError:
            return True  # Reading it will log the reason.
        signature = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
        if self._signatures.get(path) == signature and path not in self._failures:
            return False
        self._signatures[path] = signature
        return True

    def _read(self, path: Path) -> None:
        try:
            manifest = parse_manifest(decode_text(read_regular(path, MOST_BYTES)))
        except OSError as error:
            self._fail(path, error)
            return
        except MemoryError:
            self._fail(path, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
            return
        # Whatever one file makes our code raise is the fault of this file.
        except Exception as error:
            self._failures.pop(path, None)
            logger.error(error, "Manifest is left as it was before", file=str(path))
            return
        self._succeed(path)
        if self._health_check:
            manifest = _with_check(manifest, self._health_check)
        before = self._files.get(path, Manifest())
        self._unreported += [
            _placed(path, manifest, problem)
            for problem in manifest.problems
            if problem not in before.problems
        ]
        for note in manifest.notes:
            if note not in before.notes:
                logger.info("Part of a manifest has no effect", file=str(path), reason=note)
        self._files[path] = _with_kept(manifest, before)

    def _fail(self, path: Path, error: OSError) -> None:
        """Record that a file or the directory cannot be read. Each reason is logged once."""
        reason = str(error) if isinstance(error, _Lost) else format_os_error(error)
        if self._failures.get(path) != reason:
            logger.error(
                reason,
                "Manifest is left as it was before; trying again"
                if path != self._directory
                else "Manifests are left as they were before; trying again",
                file=str(path),
            )
        self._failures[path] = reason

    def _succeed(self, path: Path) -> None:
        if self._failures.pop(path, None) is not None:
            logger.info("Manifests can be read again", file=str(path))

    def _merge(self) -> Mapping[Key, Object]:
        """Return the objects of all files. Of objects with one name the first file's wins."""
        merged: dict[Key, Object] = {}
        targets: dict[Key, Mapping[str, int]] = {}
        clashes: list[Undecodable] = []
        for path in sorted(self._files):
            manifest = self._files[path]
            for key, found in manifest.objects.items():
                if key in merged:
                    text = f"{path} holds another object of this name; the first file wins"
                    clashes.append(Undecodable(key[0], f"{key[1]}/{key[2]}", text))
                    continue
                merged[key] = found
                if key in manifest.target_ports:
                    targets[key] = manifest.target_ports[key]
            for short in manifest.shorts.values():
                expanded = short.objects or service_objects(short.service, self._names.resolved)
                if taken := next((key for key in expanded if key in merged), None):
                    text = f"{path}: another object has the name {taken[2]}; the first one wins"
                    name = f"{NAMESPACE}/{short.service.name}"
                    clashes.append(Undecodable(Kind.SERVICE, name, text))
                else:
                    merged |= expanded
        self._unreported += [clash for clash in clashes if clash not in self._clashes]
        self._clashes = frozenset(clashes)
        self._report_targets(merged, targets)
        return merged

    def _report_targets(
        self, merged: Mapping[Key, Object], targets: Mapping[Key, Mapping[str, int]]
    ) -> None:
        """Log once per target port that no slice serves it."""
        notes = tuple(unserved_targets(merged, targets))
        for note in notes:
            if note not in self._notes:
                logger.info("Check the manifests", reason=note)
        self._notes = frozenset(notes)


def _is_manifest(entry: os.DirEntry[str]) -> bool:
    """Is it a file for us? Looking at a regular file's entry costs no system call."""
    if not entry.name.endswith(_ENDINGS) or entry.name.startswith("."):
        return False
    # A link that leads nowhere is a file that cannot be read now, and so is one whose target
    # cannot be found out: one such file says nothing about the others.
    try:
        return entry.is_file() or (entry.is_symlink() and is_dangling(Path(entry)))
    except OSError:
        return True


def _with_check(manifest: Manifest, text: str) -> Manifest:
    """Annotate Services that have no health check of their own."""
    return replace(
        manifest,
        shorts={name: _short_checked(short, text) for name, short in manifest.shorts.items()},
        objects={
            key: _checked(found, text) if isinstance(found, objects.Service) else found
            for key, found in manifest.objects.items()
        },
    )


def _checked(service: objects.Service, text: str) -> objects.Service:
    annotations = service.metadata.annotations or objects.ServiceAnnotations()
    if annotations.health_check is not None:
        return service
    annotations = replace(annotations, health_check=text)
    return replace(service, metadata=replace(service.metadata, annotations=annotations))


def _short_checked(short: Short, text: str) -> Short:
    annotations = short.service.annotations
    if annotations.health_check is not None:
        return short
    annotations = replace(annotations, health_check=text)
    return Short.of(replace(short.service, annotations=annotations))


def _placed(path: Path, manifest: Manifest, problem: Undecodable) -> Undecodable:
    """Name the file and the line, as far as it is known."""
    line = manifest.lines.get(problem)
    if line is None:
        return problem
    return replace(problem, reason=f"{path}:{line}: {problem.reason}")


def _with_kept(manifest: Manifest, before: Manifest) -> Manifest:
    """Keep the earlier version of each object that cannot be decoded now."""
    bad = {(problem.kind, problem.name) for problem in manifest.problems}
    kept = {
        key: found
        for key, found in before.objects.items()
        if key not in manifest.objects
        and ((key[0], f"{key[1]}/{key[2]}") in bad or (key[0], key[2]) in bad)
    }
    shorts = {
        name: short
        for name, short in before.shorts.items()
        if name not in manifest.shorts and (Kind.SERVICE, f"{NAMESPACE}/{name}") in bad
    }
    return replace(
        manifest, objects={**manifest.objects, **kept}, shorts={**manifest.shorts, **shorts}
    )
