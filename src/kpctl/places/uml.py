"""User-mode Linux: a kernel that is a program.

Debian's has IPVS, the dummy device, ipset and iptables-legacy, boots in seconds and needs no
privileges of its own. It has one processor, and nf_tables does not work in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from kpctl.places.guest import GuestKernel, Wire

PROGRAM = "linux.uml"
_MODULES = Path("/usr/lib/uml/modules")
_ALONE = ("unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
"""The kernel has helpers, which do not end with it when it is killed. The first process of a PID
namespace takes all others along."""
_PREPARE = """\
for tool in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
  ln -s "$(command -v xtables-legacy-multi)" /run/bin/$tool  # nf_tables does not work in here
done
stty -F /dev/ttyS0 raw -echo
"""


_CAUGHT = re.compile(r"^SigCgt:\s*(\w+)$", re.MULTILINE)


def missing() -> str:
    """Why no such kernel can be booted here. Empty if it can."""
    if shutil.which(PROGRAM) is None or not _MODULES.is_dir():
        return 'user-mode Linux is not installed (package "user-mode-linux")'
    if shutil.which("modprobe") is None:
        return 'modprobe is not installed (package "kmod")'
    return ""


class UserModeKernel(GuestKernel):
    """One booted user-mode kernel."""

    card = "vec0"

    def __init__(
        self,
        *,
        memory: str = "1024M",
        preload: Sequence[str] = (),
        paths: Sequence[Path] = (),
        wire: Wire | None = None,
    ) -> None:
        super().__init__(preload=preload, paths=paths, wire=wire)
        self._memory = memory

    def _why_not(self) -> str:
        return missing()

    def _nudge(self) -> None:
        """Let it look at its timers.

        A kernel that slept until its next timer was seen to sleep for ten minutes, though processes
        in it had timers of a second; why is not known. Its timer is this signal, and one too many
        does no harm.
        """
        with contextlib.suppress(OSError, IndexError):  # it begins, or ends, at this moment
            kernel = self._kernel_id()
            found = _CAUGHT.search(Path(f"/proc/{kernel}/status").read_text())
            # What it does not catch yet, while it boots, would end it.
            if found and int(found[1], 16) >> (signal.SIGALRM - 1) & 1:
                os.kill(kernel, signal.SIGALRM)

    def _kernel_id(self) -> int:
        """The kernel's process: what was started, or its only child where that is `unshare`."""
        assert self._process is not None
        started = self._process.pid
        if os.geteuid() != 0:
            return started
        return int(Path(f"/proc/{started}/task/{started}/children").read_text().split()[0])

    def _command(self, line: int) -> Sequence[str]:
        (self._folder / "lib").mkdir()
        (self._folder / "lib/modules").symlink_to(_MODULES)
        init = self._write_init(self._folder, _PREPARE, "/dev/ttyS0")
        return [
            *(_ALONE if os.geteuid() == 0 else ()),
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
            f"ssl0=fd:{line}",
            *([f"vec0:transport=tap,ifname={self._wire.device}"] if self._wire else []),
        ]
