"""A second kernel for tests and benchmarks: user-mode Linux, booted once, called many times.

Why: IPVS and the dummy device are not in every machine's kernel, but Debian's user-mode-linux has
both, boots in seconds, needs no privileges of its own and shares nothing with the host but the
(read-only) files. Promise: each call runs a function of a given file in a fresh process and a
fresh network namespace of that kernel and returns its result; every wait ends; the kernel ends
with the process that booted it. Leaves to others: what is run.

    with UserModeKernel() as kernel:
        kernel.call(Path("guest.py"), "function", {"some": "argument"})
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kubeproxy.errors import ProxyError

PROGRAM = "linux.uml"
_MODULES = Path("/usr/lib/uml/modules")
_BOOT_SECONDS = 60.0
_HALT_SECONDS = 5.0
_AGENT = Path(__file__).with_name("uml_agent.py")
_SOURCES = Path(__file__).parents[2]


class GuestError(ProxyError):
    """The function in the guest failed, or the guest did not answer. The text holds its output."""


class CallResult(msgspec.Struct, frozen=True):
    """What a call returned: a value, or the traceback of what went wrong."""

    value: object = None
    error: str = ""


def missing() -> str:
    """Why no such kernel can be booted here. Empty if it can."""
    if shutil.which(PROGRAM) is None or not _MODULES.is_dir():
        return 'user-mode Linux is not installed (package "user-mode-linux")'
    if shutil.which("modprobe") is None:
        return 'modprobe is not installed (package "kmod")'
    return ""


class UserModeKernel:
    """One booted kernel."""

    def __init__(
        self, *, memory: str = "1024M", preload: Sequence[str] = (), paths: Sequence[Path] = ()
    ) -> None:
        """`preload` are modules every call needs, imported once before the first call.

        `paths` are directories of modules beside our own sources.
        """
        self._memory = memory
        self._preload = tuple(preload)
        self._paths = (_SOURCES, *paths)
        self._folder = Path(tempfile.mkdtemp(prefix="kubeproxy-uml-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    def __enter__(self) -> UserModeKernel:
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
        process, self._process = self._process, None
        if process is not None:
            self._halt(process)
            os.close(self._requests)
            os.close(self._results)
        shutil.rmtree(self._folder, ignore_errors=True)

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
        reason = missing()
        if reason:
            raise GuestError(reason)
        guest_in, self._requests = os.pipe()
        self._results, guest_out = os.pipe()
        with (self._folder / "console").open("wb") as console:
            self._process = subprocess.Popen(
                [*self._command(), f"ssl0=fd:{guest_in},fd:{guest_out}"],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                pass_fds=(guest_in, guest_out),
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self._folder)},
            )
        os.close(guest_in)
        os.close(guest_out)
        self._read_line(_BOOT_SECONDS)

    def _command(self) -> list[str]:
        init = self._write_script("init", _init_script(self._folder, self._preload, self._paths))
        self._write_script("modprobe", _modprobe_script(self._folder))
        (self._folder / "lib").mkdir()
        (self._folder / "lib/modules").symlink_to(_MODULES)
        return [
            PROGRAM,
            f"mem={self._memory}",
            f"uml_dir={self._folder}",
            "root=/dev/root",
            "rootfstype=hostfs",
            "hostfs=/",
            "ro",
            f"init={init}",
            "quiet",
            "con=null",
            "con0=null,fd:1",
            "ssl=null",
        ]

    def _write_script(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def _send(self, request: object) -> None:
        os.write(self._requests, msgspec.json.encode(request) + b"\n")

    def _read_line(self, timeout_seconds: float) -> bytes:
        deadline = time.monotonic() + timeout_seconds
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._results], [], [], max(left, 0))
            part = os.read(self._results, 1 << 16) if ready else b""
            if not part:
                raise GuestError(f"the user-mode kernel did not answer\n{self.log}")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line


def _modprobe_script(folder: Path) -> str:
    """A modprobe that finds the modules in the directory of their package."""
    return f'#!/bin/sh\nexec modprobe -d {folder} "$@"\n'


def _init_script(folder: Path, preload: Sequence[str], paths: Sequence[Path]) -> str:
    path = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    return f"""#!/bin/sh
export PATH=/run/bin:{path}
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={os.pathsep.join(map(str, paths))} TMPDIR=/run HOME=/run
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir /run/bin
for tool in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
  ln -s "$(command -v xtables-legacy-multi)" /run/bin/$tool  # nf_tables does not work in here
done
mount -t devtmpfs dev /dev 2>/dev/null
echo {folder}/modprobe > /proc/sys/kernel/modprobe
{folder}/modprobe ipv6
ip link set lo up
stty -F /dev/ttyS0 raw -echo
exec {sys.executable} {_AGENT} /dev/ttyS0 {" ".join(preload)}
"""
