"""A machine of the cluster: namespaces of its own for network, mounts, processes and host name.

Programs are started with `nsenter`: `ip netns exec` would hide the cgroup mounts. A machine ends
with its first process (`init`), and that ends with us.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kubeproxy.errors import KernelError

_NAMESPACES = ("--net", "--uts", "--mount", "--pid")
_END_SECONDS = 30.0


class Machine:
    """An open machine. Closing it ends everything inside."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        with self.log("init").open("wb") as log:
            self._holder = subprocess.Popen(
                # If its parent ends, the first process is killed.
                [
                    *("unshare", *_NAMESPACES, "--fork", "--kill-child", "--propagation=private"),
                    *(sys.executable, "-m", "kpctl.kubernetes.init", name, str(folder)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"up\n":
            self.close()
            raise KernelError(f"{name} does not start: {self.last_words('init')}")

    @property
    def network(self) -> Path:
        return Path(f"/proc/{self._holder.pid}/ns/net")

    @property
    def holder(self) -> int:
        """A process in the machine's network, by the number that the host knows it by."""
        return self._holder.pid

    def log(self, program: str) -> Path:
        return self.folder / f"{program}.log"

    def last_words(self, program: str, lines: int = 3) -> str:
        """The end of a program's log, as one line."""
        path = self.log(program)
        text = path.read_text(errors="replace") if path.exists() else ""
        return " / ".join(text.splitlines()[-lines:]) or f"{path} is empty"

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on the machine."""
        spaces = f"/proc/{self._holder.pid}/ns"
        return [
            "nsenter",
            *(f"--net={spaces}/net", f"--uts={spaces}/uts", f"--mount={spaces}/mnt"),
            *(f"--pid={spaces}/pid_for_children", "--", *argv),
        ]

    def start(self, program: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program that runs until the machine ends, with a log of its own."""
        with self.log(program).open("ab") as log:
            process = subprocess.Popen(
                self.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def run(self, *argv: str) -> str:
        """Run a command to its end on the machine. Return what it prints. Raises `KernelError`."""
        done = subprocess.run(self.command(argv), capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise KernelError(f"{self.name}: {' '.join(argv[:3])} failed: {said[-500:]}")
        return done.stdout

    def end(self) -> None:
        """Let the first process end, and everything with it. `close` waits for that."""
        assert self._holder.stdin is not None
        self._holder.stdin.close()

    def close(self) -> None:
        for stream in (self._holder.stdin, self._holder.stdout):
            if stream is not None:
                stream.close()
        try:
            self._holder.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
        for process in self._started:
            process.wait()
