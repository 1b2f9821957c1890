"""Objects from files, directories and standard input, once: for commands that end.

The daemon watches manifests (`api.manifests`) and keeps what was good before. Here there is no
before: what cannot be used is named and counted, so that a command can refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from kubeproxy.api.manifest_text import Key, decode_text, parse_manifest
from kubeproxy.api.manifests import MOST_BYTES, SUFFIXES
from kubeproxy.api.source import Object
from kubeproxy.errors import ObjectError
from kubeproxy.go.text import format_os_error
from kubeproxy.kernel.files import read_limited
from kubeproxy.logs import get_logger

logger = get_logger(__name__)

STANDARD_INPUT = Path("-")


class Reading(Struct, frozen=True):
    """The usable objects, and how many others there were."""

    objects: Mapping[Key, Object]
    rejected: int


def read_objects(places: Iterable[Path]) -> Reading:
    """Read all objects. Of two with one name the first is used, and the other is rejected."""
    found: dict[Key, Object] = {}
    rejected = 0
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
        for problem in manifest.problems:
            _reject(problem.kind.value, problem.name, path, problem.reason)
        clashes = manifest.objects.keys() & found.keys()
        for kind, namespace, name in sorted(clashes, key=str):
            label = f"{namespace}/{name}" if namespace else name
            _reject(kind.value, label, path, "an earlier file has an object of this name")
        rejected += len(manifest.problems) + len(clashes)
        found = {**manifest.objects, **found}
    return Reading(found, rejected)


def _reject(kind: str, name: str, path: Path, reason: str) -> None:
    message = "Object cannot be used and is left out"
    logger.error(reason, message, kind=kind, name=name, file=_name(path))


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place == STANDARD_INPUT or not place.is_dir():
            yield place
            continue
        files = sorted(
            path
            for path in place.iterdir()
            if path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()
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
