"""Size and time-outs of the connection tracking table, set once at start.

Why: the kernel's defaults are too small for a node. Promise: only parameters that differ are
written, in upstream's order, and a failure has upstream's text and the remedy: in a container, or
in a network namespace that is not the host's, some of them cannot be written.
`conntrack_parameters` decides and is pure. Leaves to others: logging, and whether a failure ends
the program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from kubeproxy.errors import KernelError
from kubeproxy.go.text import format_os_error

_SYSCTLS = "proc/sys/"
_NETFILTER = f"{_SYSCTLS}net/netfilter"
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

    `leave_alone` is the flag with which the parameter is not written. With `is_minimum`, a larger
    number is left alone, and a file that cannot be read is an error.
    """

    path: str
    value: int
    leave_alone: str
    is_minimum: bool = False

    @property
    def sysctl(self) -> str:
        """The name below /proc/sys, or empty for a parameter of the module."""
        return self.path.removeprefix(_SYSCTLS) if self.path.startswith(_SYSCTLS) else ""


def conntrack_parameters(settings: ConntrackSettings, cpus: int) -> tuple[Parameter, ...]:
    """The parameters to write, in order."""
    return tuple(_parameters(settings, conntrack_max(settings, cpus)))


def _parameters(settings: ConntrackSettings, maximum: int) -> Iterator[Parameter]:
    if maximum > 0:
        flag, buckets = "--conntrack-max-per-core=0", maximum // _ENTRIES_PER_BUCKET
        yield Parameter(f"{_NETFILTER}/nf_conntrack_max", maximum, flag)
        yield Parameter(_HASHSIZE, buckets, flag, is_minimum=True)
    others = (
        ("tcp_timeout_established", settings.tcp_established_seconds, "0"),
        ("tcp_timeout_close_wait", settings.tcp_close_wait_seconds, "0"),
        ("tcp_be_liberal", float(settings.tcp_be_liberal), "false"),
        ("udp_timeout", settings.udp_seconds, "0"),
        ("udp_timeout_stream", settings.udp_stream_seconds, "0"),
    )
    for name, value, off in others:
        if value > 0:
            flag = f"--conntrack-{name.replace('_', '-')}={off}"
            # Whole seconds, cut off like upstream: half a second is written as 0.
            yield Parameter(f"{_NETFILTER}/nf_conntrack_{name}", int(value), flag)


def conntrack_max(settings: ConntrackSettings, cpus: int) -> int:
    """The size of the table, or 0 to leave it alone.

    As upstream has it: once the size by cores exceeds the cap, the cap holds, also against a larger
    configured minimum; below it such a minimum wins.
    """
    if settings.max_per_core <= 0:
        return 0
    scaled = settings.max_per_core * cpus
    return _MAX_CAP if scaled > _MAX_CAP else max(scaled, settings.min)


def ensure_parameter(
    parameter: Parameter, writing: Callable[[], None], *, root: Path = Path("/")
) -> None:
    """Write the parameter if it differs, after calling `writing`. Raises KernelError."""
    path = root / parameter.path
    try:
        if _is_set(path, parameter):
            return
        writing()
        path.write_text(str(parameter.value))
    except OSError as error:
        # The error of writing to an open file does not name it.
        verb = "open" if error.filename else "write"
        raise KernelError(
            "could not set conntrack parameters from kube-proxy configuration: "
            f"{verb} {path}: {format_os_error(error)}; {_remedy(parameter)}",
            errno=error.errno or 0,
        ) from error


def _remedy(parameter: Parameter) -> str:
    name = parameter.sysctl.replace("/", ".")
    place = f"sysctl -w {name}={parameter.value}" if name else f"/{parameter.path}"
    return f"set it on the host ({place}), or leave it as it is with {parameter.leave_alone}"


def _is_set(path: Path, parameter: Parameter) -> bool:
    current = _read(path, must_exist=parameter.is_minimum)
    if current is None:
        return False
    return current == parameter.value or (parameter.is_minimum and current > parameter.value)


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
