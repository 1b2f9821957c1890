"""Size and time-outs of the connection tracking table, set once at start.

Why: the kernel's defaults are too small for a node. Promise: only parameters that differ are
written, in upstream's order, and a failure has upstream's text. `conntrack_parameters` decides and
is pure; `set_conntrack_parameters` writes. Leaves to others: that a failure ends the program.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from kubeproxy.errors import KernelError

_NETFILTER = "proc/sys/net/netfilter"
_HASHSIZE = "sys/module/nf_conntrack/parameters/hashsize"
_MAX_CAP = 1_048_576
_ENTRIES_PER_BUCKET = 4


class ConntrackSettings(Struct, frozen=True):
    """The `conntrack` part of the configuration; 0 leaves a parameter alone."""

    max_per_core: int = 32768
    min: int = 131072
    tcp_established_seconds: float = 86400
    tcp_close_wait_seconds: float = 3600
    tcp_be_liberal: bool = False
    udp_seconds: float = 0
    udp_stream_seconds: float = 0


class Parameter(Struct, frozen=True):
    """A file relative to the root, and the number it should hold.

    With `is_minimum`, a larger number is left alone, and a file that cannot be read is an error.
    """

    path: str
    value: int
    is_minimum: bool = False


def conntrack_parameters(settings: ConntrackSettings, cpus: int) -> tuple[Parameter, ...]:
    """The parameters to write, in order."""
    return tuple(_parameters(settings, conntrack_max(settings, cpus)))


def _parameters(settings: ConntrackSettings, maximum: int) -> Iterator[Parameter]:
    if maximum > 0:
        yield Parameter(f"{_NETFILTER}/nf_conntrack_max", maximum)
        yield Parameter(_HASHSIZE, maximum // _ENTRIES_PER_BUCKET, is_minimum=True)
    timeouts = (
        ("tcp_timeout_established", settings.tcp_established_seconds),
        ("tcp_timeout_close_wait", settings.tcp_close_wait_seconds),
        ("tcp_be_liberal", float(settings.tcp_be_liberal)),
        ("udp_timeout", settings.udp_seconds),
        ("udp_timeout_stream", settings.udp_stream_seconds),
    )
    for name, value in timeouts:
        if value > 0:
            # Whole seconds, cut off like upstream: half a second is written as 0.
            yield Parameter(f"{_NETFILTER}/nf_conntrack_{name}", int(value))


def conntrack_max(settings: ConntrackSettings, cpus: int) -> int:
    """The size of the table, or 0 to leave it alone.

    As upstream has it: once the size by cores exceeds the cap, the cap holds, also against a larger
    configured minimum; below it such a minimum wins.
    """
    if settings.max_per_core <= 0:
        return 0
    scaled = settings.max_per_core * cpus
    return _MAX_CAP if scaled > _MAX_CAP else max(scaled, settings.min)


def set_conntrack_parameters(
    parameters: Iterable[Parameter], *, root: Path = Path("/")
) -> list[Parameter]:
    """Write the parameters that differ. Return them. Raises KernelError with upstream's text."""
    try:
        return [parameter for parameter in parameters if _ensure(root / parameter.path, parameter)]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise KernelError(
            "could not set conntrack parameters from kube-proxy configuration: "
            f"open {error.filename}: {reason}",
            errno=error.errno or 0,
        ) from error


def _ensure(path: Path, parameter: Parameter) -> bool:
    current = _read(path, must_exist=parameter.is_minimum)
    enough = parameter.is_minimum and current is not None and current > parameter.value
    if current == parameter.value or enough:
        return False
    path.write_text(str(parameter.value))
    return True


def _read(path: Path, *, must_exist: bool) -> int | None:
    """The number in the file; None, which differs from any number, if there is none."""
    try:
        return int(path.read_text().strip())
    except ValueError:
        return None
    except OSError:
        if must_exist:
            raise
        return None


def count_cpus(*, root: Path = Path("/")) -> int:
    """Logical CPUs of the machine, not only those this process may use."""
    devices = root / "sys/devices/system"
    cpus = {p.name for p in devices.glob("node/node[0-9]*/cpu[0-9]*")}
    cpus = cpus or {p.name for p in devices.glob("cpu/cpu[0-9]*")}
    return len(cpus) or len(os.sched_getaffinity(0))
