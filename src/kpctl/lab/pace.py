"""How slow this machine is, measured once: the limits of the lab follow it.

A limit that suits an idle machine is too short in an emulated kernel or beside other work, and one
that suits those is tiresome everywhere else. What is measured is what a lab mostly does: starting a
program, which is processor, page tables and file system in one.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time

_ORDINARY_SECONDS = 0.1
_SLOWEST = 20.0
"""Beyond that something is broken, and the message should not take hours."""
_PROGRAM = (sys.executable, "-c", "import asyncio, json, subprocess")


def scaled(seconds: float) -> float:
    """A limit for this machine, of one that suits an idle, ordinary machine."""
    return seconds * slowness()


@functools.cache
def slowness() -> float:
    """How many times longer things take here than on an idle, ordinary machine; at least 1.

    The better of two: a kernel that has just begun reads the program's files for the first time.
    """
    return min(slowness_now(), slowness_now())


def slowness_now() -> float:
    """The same at this moment, for times that cannot be long from the start."""
    began = time.monotonic()
    subprocess.run(_PROGRAM, check=True)
    return bounded((time.monotonic() - began) / _ORDINARY_SECONDS)


def bounded(measured: float) -> float:
    """A measured factor within what limits may follow."""
    return min(max(measured, 1.0), _SLOWEST)
