"""Wait until the kernel has finished with everything it was reading.

Packets pass through the rule set in read-side sections of RCU: what one of them has looked at may
be gone before it is done. `membarrier` is the one system call that makes the kernel wait for all
such sections, some 10 ms, without using the CPU. Neither Python nor the C library has a name for
it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import time

_NUMBERS = {
    "x86_64": 324,
    "aarch64": 283,
    "riscv64": 283,
    "loongarch64": 283,
    "s390x": 356,
    "ppc64le": 365,
    "armv7l": 389,
}
_MEMBARRIER_CMD_GLOBAL = 1

FALLBACK_SECONDS = 0.05
"""A packet is under way for microseconds, so this is long enough unless its CPU is taken away."""


def wait_for_readers() -> None:
    """Block until all packets that are under way now are done."""
    if not _barrier():
        time.sleep(FALLBACK_SECONDS)


def _barrier() -> bool:
    """Try the system call. With one CPU the kernel does not wait, and with nohz_full it refuses."""
    number = _NUMBERS.get(platform.machine())
    if number is None or os.cpu_count() == 1:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(number, _MEMBARRIER_CMD_GLOBAL, 0, 0)) == 0
