"""The lock that iptables-legacy tools share: find its holder, and hold it ourselves.

Why: "another app is currently holding the xtables lock" does not name the process, but the kernel
knows it. And an iptables-restore older than 1.6.2 takes no lock at all, so we hold it meanwhile.
Promise: a wait for the lock ends, and the error names the holder.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

from kubeproxy.errors import Busy

LOCK_FILE = Path(os.environ.get("XTABLES_LOCKFILE", "/run/xtables.lock"))
"""Where the tools have it, since iptables 1.8.5 by the same variable."""
OLD_LOCK = "\0xtables"
"""Abstract socket that iptables before 1.4.20 used as its lock."""

_RETRY_SECONDS = 0.2
_GIVE_UP_SECONDS = 2.0


def parse_locks(text: str, inode: int) -> tuple[int, ...]:
    """Processes that hold (not wait for) a lock on an inode, from the text of /proc/locks."""
    holders = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] != "->" and fields[5].rpartition(":")[2] == str(inode):
            holders.append(int(fields[4]))
    return tuple(holders)


def lock_holder(lock_file: Path = LOCK_FILE, proc: Path = Path("/proc")) -> str:
    """The holder of the lock right now: `pid 17 (iptables-save -t nat)`, or an empty text."""
    return _described(_holders(lock_file, proc), proc)


def foreign_lock_holder(lock_file: Path = LOCK_FILE, proc: Path = Path("/proc")) -> str:
    """The same, but neither we ourselves nor a tool that we have started."""
    holders = _holders(lock_file, proc)
    return _described([pid for pid in holders if not _is_ours(pid, proc)], proc)


def _holders(lock_file: Path, proc: Path) -> tuple[int, ...]:
    try:
        return parse_locks((proc / "locks").read_text(), lock_file.stat().st_ino)
    except OSError:
        return ()


def _described(holders: Iterable[int], proc: Path) -> str:
    return ", ".join(f"pid {pid} ({_command_of(pid, proc)})" for pid in holders)


def _is_ours(pid: int, proc: Path) -> bool:
    try:
        # The name, in parentheses, may hold anything; the state and the parent follow it.
        parent = (
            (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        )
    except (OSError, IndexError):
        return False
    return str(os.getpid()) in (parent, str(pid))


def _command_of(pid: int, proc: Path) -> str:
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return b" ".join(words).decode(errors="replace").strip() or "no command line"


@contextlib.asynccontextmanager
async def held_lock(lock_file: Path = LOCK_FILE, old_lock: str = OLD_LOCK) -> AsyncIterator[None]:
    """Hold both the file lock and the older socket lock for the length of the block."""
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(_opened(lock_file))
        await _retry(lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB), "new", lock_file)
        old = stack.enter_context(_unix_socket())
        await _retry(lambda: old.bind(old_lock), "old", lock_file)
        yield


def _unix_socket() -> socket.socket:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise Busy(f"failed to open the old iptables lock: {error.strerror}") from error


@contextlib.contextmanager
def _opened(lock_file: Path) -> Iterator[int]:
    try:
        handle = os.open(lock_file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Busy(f"failed to open iptables lock {lock_file}: {error.strerror}") from error
    try:
        yield handle
    finally:
        os.close(handle)


async def _retry(attempt: Callable[[], None], which: str, lock_file: Path) -> None:
    waited = 0.0
    while True:
        try:
            attempt()
        except OSError as error:
            if waited >= _GIVE_UP_SECONDS:
                holder = lock_holder(lock_file) or "an unknown process"
                raise Busy(
                    f"failed to acquire {which} iptables lock: {error.strerror}; held by {holder}"
                ) from error
        else:
            return
        await asyncio.sleep(_RETRY_SECONDS)
        waited += _RETRY_SECONDS
