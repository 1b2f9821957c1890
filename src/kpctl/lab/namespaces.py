"""Network namespaces of one lab: made, wired, entered for a moment, and always removed.

Promises: every namespace's name starts with a prefix that belongs to one living process; nothing
is made in the namespace of the caller; the namespaces are removed even if the caller is killed.
Three things ensure that: `close`, the reaper (a child that acts when the caller is gone) and
`sweep_stale` (at the next start, should reaper and caller have been killed together).

A socket belongs to the namespace it was made in. So instead of one process per namespace, `inside`
takes the calling thread into a namespace for as long as it takes to make a socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import IO

from kpctl.lab import wiring
from kpctl.lab.reaper import NAMED, lab_namespaces, remove_namespaces
from kpctl.lab.topology import ROUTER, Topology
from kpctl.places.netns import enter_namespace
from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.ids import Family

PREFIX = "kplab-"
_LOCKS = Path("/run/lock")
_SYSCTLS = Path("/proc/sys")
_serial = count()


class Namespaces:
    """The namespaces of one lab, by the names of the topology."""

    def __init__(self, topology: Topology) -> None:
        require_root()
        sweep_stale()
        self.topology = topology
        self._prefix = f"{PREFIX}{os.getpid()}-{next(_serial)}-"
        self._lock = _take_lock(self._prefix)
        self._reaper = _start_reaper(self._prefix, self._lock)
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._handles: dict[str, int] = {}
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def name(self, host: str) -> str:
        """The namespace's name as `ip netns` knows it."""
        return f"{self._prefix}{host}"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on a host of the lab."""
        return ["ip", "netns", "exec", self.name(host), *argv]

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Take this thread into a host's namespace. No `await` belongs in this block."""
        _enter(self._handles[host])
        try:
            yield
        finally:
            _enter(self._home)

    def ip(self, host: str, lines: Sequence[str], *options: str) -> None:
        """Run `ip` commands on a host in one process, up to the first failure."""
        _ip_batch(["-n", self.name(host), *options], lines)

    def close(self) -> None:
        """Remove everything. Safe to call twice."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles = {}
        if self._reaper.stdin is not None and not self._reaper.stdin.closed:
            self._reaper.stdin.close()
            self._reaper.wait()
            if self._reaper.stdout is not None:
                self._reaper.stdout.close()
            os.close(self._home)
            _drop_lock(self._prefix, self._lock)

    def _build(self) -> None:
        topology = self.topology
        _ip_batch([], [f"netns add {self.name(host)}" for host in topology.names])
        for host in topology.names:
            self._handles[host] = os.open(NAMED / self.name(host), os.O_RDONLY | os.O_CLOEXEC)
            with self.inside(host):
                _write_sysctls(wiring.sysctls(host, topology))
                _write_sysctls(_existing(wiring.BRIDGE_SYSCTLS))
        self.ip(ROUTER, wiring.link_commands(topology, self.name))
        for node in topology.nodes:
            self.ip(node.name, wiring.node_link_commands(node, self.name))
        for host in topology.names:
            self.ip(host, wiring.address_commands(host, topology))
        for family, option in ((Family.IPV4, "-4"), (Family.IPV6, "-6")):
            self.ip(ROUTER, wiring.ingress_commands(topology, family), option)


def require_root() -> None:
    """Raise Unsupported unless this process may make namespaces."""
    if os.geteuid() != 0:
        raise Unsupported("the lab makes network namespaces and needs root: try again with sudo")


def sweep_stale() -> list[str]:
    """Remove labs whose owner and reaper are both gone. Return their prefixes."""
    swept = []
    for prefix in sorted({_prefix_of(name) for name in lab_namespaces(PREFIX)} - {""}):
        lock = _try_lock(prefix)
        if lock is not None:
            remove_namespaces(prefix)
            _drop_lock(prefix, lock)
            swept.append(prefix)
    return swept


def _prefix_of(namespace: str) -> str:
    """`kplab-PID-SERIAL-` of a namespace's name, or empty if it is not a lab's."""
    parts = namespace.split("-", 3)
    return "-".join(parts[:3]) + "-" if len(parts) == 4 else ""


def _lock_path(prefix: str) -> Path:
    return _LOCKS / f"{prefix}lock"


def _try_lock(prefix: str) -> int | None:
    """Take the lab's lock. Return None while its owner or its reaper lives."""
    _LOCKS.mkdir(parents=True, exist_ok=True)
    handle = os.open(_lock_path(prefix), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _take_lock(prefix: str) -> int:
    lock = _try_lock(prefix)
    if lock is None:
        raise KernelError(f"another lab holds {_lock_path(prefix)}")
    return lock


def _drop_lock(prefix: str, lock: int) -> None:
    _lock_path(prefix).unlink(missing_ok=True)
    os.close(lock)


def _start_reaper(prefix: str, lock: int) -> subprocess.Popen[str]:
    """Start the reaper and wait until it is ready, before anything exists for it to remove."""
    reaper = subprocess.Popen(
        [sys.executable, "-m", "kpctl.lab.reaper", prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(lock,),
    )
    if _stream(reaper.stdout).readline() != "ready\n":
        raise KernelError("the lab's reaper did not start")
    return reaper


def _stream(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise KernelError("the lab's reaper has no pipe")
    return stream


def _enter(handle: int) -> None:
    try:
        enter_namespace(handle)
    except OSError as error:
        number = error.errno or 0
        raise KernelError(
            f"cannot enter a namespace: {os.strerror(number)}", errno=number
        ) from error


def _ip_batch(options: Sequence[str], lines: Sequence[str]) -> None:
    done = subprocess.run(
        ["ip", *options, "-batch", "-"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise KernelError(f"ip {' '.join(options)} failed: {done.stderr.strip()}")


def _write_sysctls(values: Mapping[str, str]) -> None:
    """Write settings of the namespace this thread is in, which is the one /proc/sys/net shows."""
    for path, value in values.items():
        (_SYSCTLS / path).write_text(value)


def _existing(values: Mapping[str, str]) -> Mapping[str, str]:
    return {path: value for path, value in values.items() if (_SYSCTLS / path).exists()}
