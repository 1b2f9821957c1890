"""The capabilities of this process, read and reduced.

Why: the standard library has no names for capset(2) and prctl(2). Promise: what `keep_only` takes
away does not come back, neither here nor in a program that is run. Leaves to others: which
capabilities are needed (`run.privileges`), and that there is one thread only: the kernel keeps
capabilities per thread, and a new thread gets those of the one that starts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from kubeproxy.errors import KernelError

BITS = {
    "DAC_OVERRIDE": 1,
    "DAC_READ_SEARCH": 2,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "NET_ADMIN": 12,
    "NET_RAW": 13,
}
"""Those that matter here, by their numbers in linux/capability.h."""

_STATUS = Path("/proc/thread-self/status")
_VERSION_3 = 0x20080522
_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38
_HALVES = 2
"""Two elements of 32 bits each hold one set."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("thread", ctypes.c_int))


class _Half(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


class Capabilities(Struct, frozen=True, gc=False):
    """The sets of one thread, as bits."""

    effective: int
    permitted: int
    inheritable: int
    bounding: int = 0
    ambient: int = 0


def capability_mask(names: Iterable[str]) -> int:
    """Return these capabilities as bits."""
    return sum(1 << BITS[name] for name in set(names))


def read_capabilities(status: Path = _STATUS) -> Capabilities | None:
    """Return the sets of the calling thread; None where they cannot be read."""
    try:
        rows = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        names = ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")
        return Capabilities(*(int(rows[name], 16) for name in names))
    except (OSError, KeyError, ValueError):
        return None


def keep_only(mask: int) -> None:
    """Give up every capability of the calling thread but these, for good. Raises KernelError.

    A program that root runs gets what it may have from the bounding set. Another user's gets it
    from the ambient set, so there the inheritable set, to which the kernel reduces that one, keeps
    what is kept.
    """
    held = read_capabilities()
    if held is None:
        raise KernelError("cannot read the capabilities of this process from /proc")
    if held.effective >> BITS["SETPCAP"] & 1:
        _reduce_bounding_set(mask)
    inheritable = 0 if os.geteuid() == 0 else held.inheritable & mask
    kept = held.permitted & mask
    halves = (_Half * _HALVES)(
        *(
            _Half(*(value >> shift & 0xFFFF_FFFF for value in (kept, kept, inheritable)))
            for shift in (0, 32)
        )
    )
    header = _Header(_VERSION_3, 0)
    if _libc().capset(ctypes.byref(header), halves) != 0:
        raise _failure("cannot give up capabilities")


def forbid_new_privileges() -> None:
    """Let no program that is run get more than this process has. Raises KernelError."""
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1) != 0:
        raise _failure("cannot set no_new_privs")


def count_threads() -> int:
    """Return how many threads the kernel counts in this process; 1 where it cannot be read."""
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    return 1


def _reduce_bounding_set(mask: int) -> None:
    bit = 0
    # The kernel answers with an error for the first number that it does not know.
    while (is_there := _prctl(_PR_CAPBSET_READ, bit)) >= 0:
        if is_there and not mask >> bit & 1 and _prctl(_PR_CAPBSET_DROP, bit) != 0:
            raise _failure(f"cannot take capability {bit} out of the bounding set")
        bit += 1


def _prctl(option: int, value: int) -> int:
    words = (ctypes.c_ulong(word) for word in (value, 0, 0, 0))
    return int(_libc().prctl(ctypes.c_int(option), *words))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _failure(what: str) -> KernelError:
    number = ctypes.get_errno()
    return KernelError(f"{what}: {os.strerror(number)}", errno=number)
