"""A filter of system calls, for this process and every program that it runs.

Why: a fault in this program, in one of its libraries or in a tool should not become a way to the
rest of the kernel. The filter names what a proxy never does, rather than everything that it does:
a list of what is allowed would depend on versions of Python, the C library and tools, and a
missing call would show up on some node as an error that makes no sense. What is refused returns
an error and does not end the process. docs/decisions/0105-dropped-privileges.md has the reasons.

Promise: `compile_filter` is pure; `install_filter` applies to all threads at once or raises
KernelError. Leaves to others: `no_new_privs`, which must be set before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator

from msgspec import Struct

from kubeproxy.errors import KernelError


class Call(Struct, frozen=True, gc=False):
    """A system call and its numbers; None where the architecture has none."""

    name: str
    x86_64: int
    aarch64: int | None


# fmt: off
REFUSED = (
    # Modules, and other kernels.
    Call("init_module", 175, 105), Call("finit_module", 313, 273),
    Call("delete_module", 176, 106), Call("kexec_load", 246, 104),
    Call("kexec_file_load", 320, 294), Call("reboot", 169, 142),
    Call("create_module", 174, None), Call("query_module", 178, None),
    Call("get_kernel_syms", 177, None),
    # File systems and namespaces.
    Call("mount", 165, 40), Call("umount2", 166, 39), Call("pivot_root", 155, 41),
    Call("chroot", 161, 51), Call("move_mount", 429, 429), Call("open_tree", 428, 428),
    Call("mount_setattr", 442, 442), Call("fsopen", 430, 430), Call("fsconfig", 431, 431),
    Call("fsmount", 432, 432), Call("fspick", 433, 433), Call("unshare", 272, 97),
    Call("setns", 308, 268), Call("open_by_handle_at", 304, 265),
    Call("fanotify_init", 300, 262), Call("quotactl", 179, 60), Call("quotactl_fd", 443, 443),
    Call("acct", 163, 89), Call("swapon", 167, 224), Call("swapoff", 168, 225),
    Call("nfsservctl", 180, 42),
    # Programs in the kernel, and queues of requests that no filter sees.
    Call("bpf", 321, 280), Call("userfaultfd", 323, 282), Call("perf_event_open", 298, 241),
    Call("io_uring_setup", 425, 425), Call("io_uring_enter", 426, 426),
    Call("io_uring_register", 427, 427),
    # Memory and files of other processes.
    Call("ptrace", 101, 117), Call("process_vm_readv", 310, 270),
    Call("process_vm_writev", 311, 271), Call("pidfd_getfd", 438, 438),
    # The machine's own settings.
    Call("settimeofday", 164, 170), Call("clock_settime", 227, 112),
    Call("sethostname", 170, 161), Call("setdomainname", 171, 162), Call("syslog", 103, 116),
    Call("vhangup", 153, 58),
    # Left from other times.
    Call("iopl", 172, None), Call("ioperm", 173, None), Call("modify_ldt", 154, None),
    Call("uselib", 134, None), Call("ustat", 136, None), Call("sysfs", 139, None),
    Call("_sysctl", 156, None), Call("lookup_dcookie", 212, 18),
)
# fmt: on
CLONE = Call("clone", 56, 220)
CLONE3 = Call("clone3", 435, 435)
SECCOMP = Call("seccomp", 317, 277)

_NEW_NAMESPACE = 0x7E02_0000
"""All CLONE_NEW* flags that clone(2) takes."""
_X32 = 0x4000_0000
"""x86-64 has its calls a second time, with 32-bit pointers, from this number on."""

_AUDIT_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

# Of struct seccomp_data, with the lower half of the first argument on a little-endian machine.
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENT = 0, 4, 16
# Of linux/filter.h: load a word; jump if equal, if greater or equal, if any bit is set; return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF_0000, 0x0005_0000

_SET_MODE_FILTER = 1
_ALL_THREADS, _NO_SPECULATION_CHANGE = 1, 4
"""Before Linux 5.16 a filter would slow the process down by a mitigation that is for programs
which run code of others."""


class UnknownArchitecture(KernelError):
    """There is no table of system calls for this machine."""


def compile_filter(machine: str) -> bytes:
    """Return the program for the kernel. Raises UnknownArchitecture."""
    if machine not in _AUDIT_ARCHITECTURES:
        raise UnknownArchitecture(f"no filter of system calls is known for {machine}")
    return b"".join(_instructions(machine))


def _instructions(machine: str) -> Iterator[bytes]:
    unknown, refused = _ERROR | errno.ENOSYS, _ERROR | errno.EPERM
    yield _step(_LOAD, _AT_ARCHITECTURE)
    yield _step(_EQUAL, _AUDIT_ARCHITECTURES[machine], 1, 0)
    yield _step(_RETURN, unknown)  # calls by 32-bit programs have other numbers
    yield _step(_LOAD, _AT_NUMBER)
    if machine == "x86_64":
        yield from _unless(_AT_LEAST, _X32, unknown)
    for call in REFUSED:
        if (number := getattr(call, machine)) is not None:
            yield from _unless(_EQUAL, number, refused)
    # Its flags are in memory, where no filter sees them. The C library then uses clone.
    yield from _unless(_EQUAL, getattr(CLONE3, machine), unknown)
    yield _step(_EQUAL, getattr(CLONE, machine), 1, 0)
    yield _step(_RETURN, _ALLOW)
    yield _step(_LOAD, _AT_ARGUMENT)
    yield from _unless(_ANY_BIT, _NEW_NAMESPACE, refused)
    yield _step(_RETURN, _ALLOW)


def _unless(test: int, value: int, outcome: int) -> Iterator[bytes]:
    """End with the outcome if the test holds, else go on."""
    yield _step(test, value, 0, 1)
    yield _step(_RETURN, outcome)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install_filter() -> None:
    """Refuse those calls from now on, in all threads. Raises KernelError."""
    machine = platform.machine()
    code = compile_filter(machine)
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_long(getattr(SECCOMP, machine))
    flags = ctypes.c_ulong(_ALL_THREADS | _NO_SPECULATION_CHANGE)
    done = libc.syscall(number, ctypes.c_ulong(_SET_MODE_FILTER), flags, ctypes.byref(program))
    if done != 0:
        failed = ctypes.get_errno() if done < 0 else errno.EBUSY  # a thread has another filter
        raise KernelError(f"cannot filter system calls: {os.strerror(failed)}", errno=failed)
