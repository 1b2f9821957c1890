"""Give up what the daemon does not need once the host is prepared.

    capabilities beyond the mode's ──▶ new ones, by running a program ──▶ system calls of no use

Why: the process reads objects that others write and answers connections that others open, with
the powers of root. What it does not have, no fault in it can lend to anyone. Promise: it happens
between preparing and serving, for all threads, and programs that are run later (iptables, a
credential plugin, the carrier) have no more either. What cannot be given up here is logged and no
reason to stop: the proxy then runs as it did before there was this module. Leaves to others: what
the modes need (`privileges`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from kubeproxy.kernel.capabilities import (
    BITS,
    capability_mask,
    count_threads,
    read_capabilities,
)
from kubeproxy.kernel.confine import give_up_privileges
from kubeproxy.logs import LogOptions, get_logger, setup_logging
from kubeproxy.run.privileges import needed_capabilities
from kubeproxy.run.workers import Workers

logger = get_logger(__name__)

_MOST_WAITS, _WAIT_SECONDS = 200, 0.01
FILES_OF_OTHERS = "DAC_OVERRIDE"


async def confine(
    modes: Sequence[str], *, files: Iterable[str], workers: Workers, logs: LogOptions
) -> None:
    """Keep what these modes need, and what these files need that are used again.

    `workers` are the threads of the event loop. They get successors.
    """
    names = kept_capabilities(*modes, has_files_of_others=any(map(belongs_to_others, files)))
    setup_logging(replace(logs, info_buffer_bytes=0))  # a buffer has a thread that writes it out
    await _end_threads(workers)
    refused = give_up_privileges(capability_mask(names))
    setup_logging(logs)
    _report(names, refused)


def kept_capabilities(*modes: str, has_files_of_others: bool) -> tuple[str, ...]:
    """Return what is kept for these modes, as far as the process has it. Pure."""
    # The health check of a Service, and what serves node ports on loopback, may have any port.
    ports = ("NET_BIND_SERVICE",)
    needed = (name for mode in modes for name in needed_capabilities(mode))
    files = (FILES_OF_OTHERS,) if has_files_of_others else ()
    return tuple(dict.fromkeys((*needed, *ports, *files)))


def _report(names: Iterable[str], refused: Iterable[str]) -> None:
    held = read_capabilities()
    kept = [name for name in names if held is None or held.effective >> BITS[name] & 1]
    logger.info("Dropped privileges", kept=",".join(kept))
    for problem in refused:
        logger.info("Privileges stay that are not needed", err=problem)


def belongs_to_others(text: str) -> bool:
    """Would root need more than ownership to use this file or folder, or one on the way to it?"""
    place = Path(text).absolute()
    return any(map(_needs_override, _way_to(place)))


def _way_to(place: Path) -> Iterator[Path]:
    for start in (place, Path(os.path.realpath(place))):
        yield start
        yield from start.parents
    with contextlib.suppress(OSError):
        yield from place.iterdir()


def _needs_override(place: Path) -> bool:
    try:
        found = place.stat()
    except OSError:
        return False
    return found.st_uid not in (0, os.geteuid()) or not found.st_mode & stat.S_IRUSR


async def _end_threads(workers: Workers) -> None:
    """End the threads of the start: the kernel keeps capabilities for each thread by itself.

    New ones start when there is work for them. One that still looks up a name ends after that.
    """
    asyncio.get_running_loop().set_default_executor(Workers())
    workers.shutdown(wait=False)
    for _ in range(_MOST_WAITS):
        if count_threads() == 1:
            return
        await asyncio.sleep(_WAIT_SECONDS)
