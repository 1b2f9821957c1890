"""A second kernel for tests and benchmarks, booted once and called many times.

Why: what a mode needs is not in every machine's kernel, and operators run other kernels than this
one. Promise: each call runs a function of a given file in a fresh process and a fresh network
namespace of that kernel and returns its result; every wait ends; the kernel ends with the process
that booted it, and the host's files are read-only to it. Leaves to others: how to boot (`uml`,
`qemu`), and what is run.

    with UserModeKernel() as kernel:
        kernel.call(Path("guest.py"), "function", {"some": "argument"})
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from kubeproxy.errors import ProxyError

SOURCES = Path(__file__).parents[2]
_TOOLS = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Searched first: in user-mode Linux each folder without the program costs a failed start, and that
half as much as one that succeeds."""
_HALT_SECONDS = 10.0
_NUDGE_SECONDS = 1.0
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""A process started by these words is killed when the thread that started it ends."""
AGENT = Path(__file__).with_name("guest_agent.py")


class GuestError(ProxyError):
    """The function in the guest failed, or the guest did not answer. The text holds its output."""


class CallResult(msgspec.Struct, frozen=True):
    """What a call returned: a value, or the traceback of what went wrong."""

    value: object = None
    error: str = ""


class Wire(msgspec.Struct, frozen=True):
    """A tap device of the host, by its name and the network namespace it is in."""

    network: Path
    device: str


class GuestKernel(ABC):
    """One booted kernel. Subclasses say how to boot it."""

    card: ClassVar[str]
    """The name that the guest gives to its network card, if it has a wire."""

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        paths: Sequence[Path] = (),
        wire: Wire | None = None,
    ) -> None:
        """`preload` are modules every call needs, imported once before the first call.

        `paths` are directories of modules beside our own sources. With a `wire` the guest has a
        network card, at the other end of it.
        """
        self._preload = tuple(preload)
        self._paths = (SOURCES, *paths)
        self._wire = wire
        self._folder = Path(tempfile.mkdtemp(prefix="kubeproxy-guest-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    @property
    def boot_seconds(self) -> float:
        """The most time until the first call may be made."""
        return 120.0

    @abstractmethod
    def _why_not(self) -> str:
        """Why this kernel cannot be booted here. Empty if it can."""

    @abstractmethod
    def _command(self, line: int) -> Sequence[str]:
        """The command line that boots it; `line` is the socket on which the agent serves calls."""

    def __enter__(self) -> Self:
        try:
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def call(
        self, file: Path, function: str, *arguments: object, timeout_seconds: float = 120.0
    ) -> object:
        """Run `function(*arguments)` of a Python file in the guest. Return its (JSON) value."""
        self._send({"file": str(file), "function": function, "arguments": arguments})
        result = msgspec.json.decode(self._read_line(timeout_seconds), type=CallResult)
        if result.error:
            raise GuestError(f"{file.name}:{function} failed in the guest\n{result.error}")
        return result.value

    def close(self) -> None:
        """Stop the kernel in any state and remove its files."""
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._halt(process)
            self._line.close()

    def _halt(self, process: subprocess.Popen[bytes]) -> None:
        """Power the guest off, by force if it does not do so in time."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._send(None)
            process.wait(_HALT_SECONDS)
        # Only the session we started: the kernel and the processes that stand for its guests.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @property
    def log(self) -> str:
        """What the kernel wrote to its console."""
        path = self._folder / "console"
        return path.read_text(errors="replace") if path.exists() else ""

    def _boot(self) -> None:
        if reason := self._why_not():
            raise GuestError(reason)
        self._line, theirs = socket.socketpair()
        with theirs, (self._folder / "console").open("wb") as console:
            self._process = subprocess.Popen(
                [*_WITH_US, *self._in_network(), *self._command(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self._folder)},
            )
        self._read_line(self.boot_seconds)

    @abstractmethod
    def _nudge(self) -> None:
        """What a kernel needs now and then while an answer is waited for."""

    def _in_network(self) -> Sequence[str]:
        return ("nsenter", f"--net={self._wire.network}", "--") if self._wire else ()

    def _write_script(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def _send(self, request: object) -> None:
        self._line.sendall(msgspec.json.encode(request) + b"\n")

    def _read_line(self, timeout_seconds: float) -> bytes:
        deadline = time.monotonic() + timeout_seconds
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._line], [], [], min(max(left, 0), _NUDGE_SECONDS))
            if not ready and left > 0:
                self._nudge()
                continue
            part = self._line.recv(1 << 16) if ready else b""
            if not part:
                raise GuestError(f"the guest kernel did not answer\n{self.log}")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _write_init(self, modules: Path, prepare: str, device: str) -> Path:
        """Write the first program of the guest. Modules are in the lib/modules of a folder."""
        # The kernel and every tool load modules by this program, as the kernel's setting says.
        # Its settings are the guest's own: tests hide modules there.
        words = f"modprobe -d {modules} -C /run/modprobe.d"
        modprobe = self._write_script("modprobe", f'#!/bin/sh\nexec {words} "$@"\n')
        path = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        python_path = os.pathsep.join(map(str, self._paths))
        return self._write_script(
            "init",
            f"""#!/bin/sh
export PATH=/run/bin:{_TOOLS}:{path}
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={python_path} TMPDIR=/run HOME=/run
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir /run/bin /run/modprobe.d
mount -t devtmpfs dev /dev 2>/dev/null
ln -sf /proc/self/fd /dev/fd
echo {modprobe} > /proc/sys/kernel/modprobe
{modprobe} ipv6
ip link set lo up
{prepare}
exec {sys.executable} {AGENT} {device} {" ".join(self._preload)}
""",
        )
