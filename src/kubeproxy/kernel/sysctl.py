"""Kernel parameters under /proc/sys: read them, and write them only when they differ.

Why: several modes need a handful of parameters, and writing one that has the right value already
may have side effects (ip_forward resets others) or be forbidden in a container that was prepared
from outside. Promise: names are paths relative to /proc/sys (`net/ipv4/ip_forward`), values are
trimmed text, every failure is a `KernelError` that names parameter and value. Leaves to others:
which parameters, and whether a failure is fatal.

Network parameters are those of the network namespace of the calling thread.
"""

from __future__ import annotations

from pathlib import Path

from kubeproxy.errors import KernelError

PROC_SYS = Path("/proc/sys")


def read_sysctl(name: str, *, root: Path = PROC_SYS) -> str:
    """The current value. Raises KernelError if it cannot be read."""
    try:
        return (root / name).read_text().strip()
    except OSError as error:
        raise _failure(f"can't read sysctl {name}", error) from error


def find_sysctl(name: str, *, root: Path = PROC_SYS) -> str | None:
    """The current value, or None if this kernel has no such parameter (or not yet)."""
    try:
        return (root / name).read_text().strip()
    except OSError:
        return None


def ensure_sysctl(name: str, value: str | int, *, root: Path = PROC_SYS) -> bool:
    """Write the parameter unless it has this value. Return whether it was written."""
    wanted = str(value)
    try:
        if (root / name).read_text().strip() == wanted:
            return False
        (root / name).write_text(wanted)
    except OSError as error:
        raise _failure(f"can't set sysctl {name} to {wanted}", error) from error
    return True


def kernel_release(*, root: Path = PROC_SYS) -> tuple[int, int]:
    """Major and minor number of the running kernel."""
    return parse_release(read_sysctl("kernel/osrelease", root=root))


def parse_release(text: str) -> tuple[int, int]:
    """`6.1.0-18-amd64` → (6, 1). A part that is no number counts as 0."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return _number(major), _number(minor)


def _number(text: str) -> int:
    digits = text[: len(text) - len(text.lstrip("0123456789"))]
    return int(digits) if digits else 0


def _failure(what: str, error: OSError) -> KernelError:
    return KernelError(f"{what}: {error.strerror or error}", errno=error.errno or 0)
