"""The filter of system calls: its table against the kernel's headers, and in a real process."""

from __future__ import annotations

import errno
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.kernel.seccomp import (
    CLONE,
    CLONE3,
    REFUSED,
    SECCOMP,
    UnknownArchitecture,
    compile_filter,
)

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),  # arm64 has the generic numbers
}
_NUMBER = re.compile(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", re.MULTILINE)

FILTERED = """
import ctypes, os, subprocess, sys, threading
from kubeproxy.kernel.capabilities import forbid_new_privileges
from kubeproxy.kernel.seccomp import install_filter
forbid_new_privileges()
install_filter()
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *words):
    ctypes.set_errno(0)
    given = [ctypes.c_ulong(word) for word in (*words, 0, 0, 0, 0)]
    done = libc.syscall(ctypes.c_long(number), *given)
    return ctypes.get_errno() if done < 0 else 0
"""


def filtered(code: str) -> str:
    """What a process prints that has installed the filter."""
    done = subprocess.run(
        [sys.executable, "-c", FILTERED + code],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("machine", sorted(HEADERS))
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers are not installed (package linux-libc-dev)")
    known = {name: int(number) for name, number in _NUMBER.findall(HEADERS[machine].read_text())}
    for call in (*REFUSED, CLONE, CLONE3, SECCOMP):
        assert getattr(call, machine) == known.get(call.name), call.name


@pytest.mark.parametrize("machine", sorted(HEADERS))
def test_a_program_is_whole_instructions_that_end_with_a_verdict(machine: str) -> None:
    code = compile_filter(machine)
    assert len(code) % 8 == 0 and len(code) // 8 < 4096
    assert code[-8:-6] == b"\x06\x00"


def test_an_unknown_machine_is_named() -> None:
    with pytest.raises(UnknownArchitecture, match="m68k"):
        compile_filter("m68k")


@pytest.mark.skipif(platform.machine() not in HEADERS, reason="no table for this machine")
class TestInAProcess:
    """What a process can and cannot do behind the filter, as root."""

    def test_what_is_refused_returns_an_error(self) -> None:
        numbers = [getattr(call, platform.machine()) for call in REFUSED]
        known = [number for number in numbers if number is not None]
        printed = filtered(f"print([call(number) for number in {known}])")
        assert printed == str([errno.EPERM] * len(known))

    def test_no_namespace_comes_from_clone(self) -> None:
        new_user, sigchld = 0x1000_0000, 17
        number = getattr(CLONE, platform.machine())
        assert filtered(f"print(call({number}, {new_user | sigchld}))") == str(errno.EPERM)

    def test_clone3_is_unknown_so_that_the_c_library_uses_clone(self) -> None:
        assert filtered(f"print(call({CLONE3.x86_64}))") == str(errno.ENOSYS)

    def test_programs_threads_and_children_still_work(self) -> None:
        printed = filtered(
            "done = []\n"
            "thread = threading.Thread(target=done.append, args=(1,)); thread.start()\n"
            "thread.join()\n"
            "out = subprocess.run(['/bin/sh', '-c', 'echo a | cat'], capture_output=True).stdout\n"
            "child = os.fork()\n"
            "if not child: os._exit(7)\n"
            "print(done, out, os.waitpid(child, 0)[1] >> 8, os.close(os.memfd_create('x')))"
        )
        assert printed == r"[1] b'a\n' 7 None"

    def test_it_holds_for_threads_that_were_there_before(self) -> None:
        code = FILTERED.replace(
            "forbid_new_privileges()\n",
            "gate, found = threading.Event(), []\n"
            "def later():\n    gate.wait(); found.append(call(272, 0x10000000))\n"
            "thread = threading.Thread(target=later); thread.start()\n"
            "forbid_new_privileges()\n",
            1,
        )
        if platform.machine() != "x86_64":
            pytest.skip("the number is that of x86-64")
        done = subprocess.run(
            [sys.executable, "-c", f"{code}\ngate.set(); thread.join(); print(found)"],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert done.stdout.strip() == str([errno.EPERM]), done.stderr
