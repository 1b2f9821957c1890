"""Objects from files, directories and standard input, once: for commands that end.

The daemon watches manifests (`api.manifests`) and keeps what was good before. Here there is no
before: what cannot be used is named and counted, so that a command can refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from kubeproxy.api.manifest_links import is_dangling
from kubeproxy.api.manifest_text import Key, Short, decode_text, parse_manifest
from kubeproxy.api.manifests import MOST_BYTES, SUFFIXES
from kubeproxy.api.names import look_up
from kubeproxy.api.short_form import NAMESPACE
from kubeproxy.api.short_objects import Resolved, service_objects
from kubeproxy.api.source import Kind, Object
from kubeproxy.errors import ObjectError
from kubeproxy.go.text import format_os_error
from kubeproxy.kernel.files import read_limited
from kubeproxy.logs import get_logger

logger = get_logger(__name__)

STANDARD_INPUT = Path("-")


class Reading(Struct, frozen=True):
    """The usable objects, how many others there were, and how much has no effect."""

    objects: Mapping[Key, Object]
    rejected: int
    noted: int = 0
    target_ports: Mapping[Key, Mapping[str, int]] = {}


def read_objects(places: Iterable[Path], *, resolves_names: bool = True) -> Reading:
    """Read all objects. Of two with one name the first is used, and the other is rejected.

    Host names are looked up now, unless their addresses do not matter.
    """
    found: dict[Key, Object] = {}
    targets: dict[Key, Mapping[str, int]] = {}
    shorts: list[tuple[Path, Short]] = []
    rejected = noted = 0
    for path in _files(places):
        try:
            manifest = parse_manifest(_text(path))
        except OSError as error:
            logger.error(format_os_error(error), "File cannot be read", file=str(path))
            rejected += 1
            continue
        except ObjectError as error:
            logger.error(error, "File cannot be used", file=_name(path))
            rejected += 1
            continue
        for note in manifest.notes:
            logger.info(note, file=_name(path))
        noted += len(manifest.notes)
        for problem in manifest.problems:
            line = manifest.lines.get(problem, 0)
            _reject(problem.kind.value, problem.name, path, problem.reason, line)
        clashes = manifest.objects.keys() & found.keys()
        for kind, namespace, name in sorted(clashes, key=str):
            label = f"{namespace}/{name}" if namespace else name
            _reject(kind.value, label, path, "an earlier file has an object of this name")
        rejected += len(manifest.problems) + len(clashes)
        found = {**manifest.objects, **found}
        targets = {**manifest.target_ports, **targets}
        shorts += ((path, short) for short in manifest.shorts.values())
    resolved = _resolve(shorts) if resolves_names else {}
    for path, short in shorts:
        expanded = short.objects or service_objects(short.service, resolved)
        if found.keys().isdisjoint(expanded):
            found |= expanded
        else:
            rejected += 1
            name = f"{NAMESPACE}/{short.service.name}"
            reason = "there is another object of the name of this one, or of one it becomes"
            _reject(Kind.SERVICE.value, name, path, reason)
    return Reading(found, rejected, noted, targets)


def _resolve(shorts: Sequence[tuple[Path, Short]]) -> Resolved:
    """Look up the host names. One that does not resolve has no addresses, as in the daemon."""
    names = {name for _, short in shorts for name in short.service.host_names}
    resolved: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        try:
            resolved[name] = look_up(name)
        except OSError as error:
            reason = error.strerror or str(error)
            logger.info("Host name does not resolve, and is left out", host=name, reason=reason)
    return resolved


def _reject(kind: str, name: str, path: Path, reason: str, line: int = 0) -> None:
    message = "Object cannot be used and is left out"
    place = f"{_name(path)}:{line}" if line else _name(path)
    logger.error(reason, message, kind=kind, name=name, file=place)


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place == STANDARD_INPUT or not place.is_dir():
            yield place
            continue
        files = sorted(
            path
            for path in place.iterdir()
            if path.suffix in SUFFIXES
            and not path.name.startswith(".")
            and (path.is_file() or is_dangling(path))  # as the daemon, which names such a link
        )
        if not files:
            logger.info("Directory has no file that ends in .yaml, .yml or .json", path=str(place))
        yield from files


def _text(path: Path) -> str:
    """Return the text of a file or of standard input. Raises OSError, ObjectError."""
    # As a path, because the stream is None where standard input is closed.
    place = "/dev/stdin" if path == STANDARD_INPUT else path
    return decode_text(read_limited(place, MOST_BYTES))


def _name(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)
