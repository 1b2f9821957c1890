"""Memory that is freed goes back to the kernel."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kubeproxy.kernel.allocator import return_freed_memory

PROGRAM = """
import re
from pathlib import Path
from kubeproxy.kernel.allocator import return_freed_memory
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
{first}
del [bytes(8 << 20)][:]  # by which glibc raises its limit
before = resident()
large, small = [], []
for _ in range(100):
    large.append(b"x" * (1 << 20))
    small.append(bytearray(2000))
large.clear()
print(resident() - before)
"""


def kept_megabytes(first: str) -> int:
    """How much of 100 MB stays when it is freed, in a process that begins like this."""
    program = PROGRAM.format(first=first)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_holes_between_small_blocks_are_returned() -> None:
    code = "from kubeproxy.kernel.allocator import return_freed_memory as r; print(r())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.stdout.strip() != "True":
        pytest.skip("this C library has no mallopt")
    assert kept_megabytes("") > 50
    assert kept_megabytes("return_freed_memory()") < 5


def test_a_c_library_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert return_freed_memory() is False
