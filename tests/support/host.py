"""Our programs in a network namespace of their own: started, queried, observed, stopped.

For tests of the whole program. What a program would change beyond its namespace is switched off.
"""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.commands import call_kpctl
from tests.support.waiting import LIMIT_SECONDS, wait_until

from kpctl.places.network import PrivateNetwork

PROGRAMS = Path(sys.executable).parent
QUIET_HOST = ("--conntrack-max-per-core=0", "--oom-score-adj=0")
"""Settings that reach beyond a network namespace are left alone."""


def restore_signals() -> None:
    """In a new process: undo what `nohup` or a shell's `&` around the tests has set."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Host:
    """A network namespace to run our programs in."""

    def __init__(self, network: PrivateNetwork, directory: Path) -> None:
        self.network = network
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.socket = directory / "kube-proxy.sock"
        self._log = directory / "log"
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(
        self,
        *flags: str,
        stderr: int | None = None,
        before: Callable[[], object] | None = None,
        program: Sequence[str | Path] = (PROGRAMS / "kube-proxy",),
    ) -> subprocess.Popen[bytes]:
        """Start the daemon on the manifests. `before` runs in its process, before the program."""
        given = (
            f"--manifests={self.manifests}",
            "--hostname-override=worker-a",
            f"--inspection-socket={self.socket}",
        )
        with self._log.open("ab") as log, self.network.inside():
            process = subprocess.Popen(
                [*program, *given, *QUIET_HOST, *flags],
                stdout=log,
                stderr=log if stderr is None else stderr,
                preexec_fn=before,
            )
        self._running.append(process)
        return process

    def run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run one of our programs, or a tool, to its end. `kpctl` is called in a fork."""
        path = PROGRAMS / program
        with self.network.inside():
            if program == "kpctl":
                return call_kpctl([*map(str, arguments)], Path.cwd(), {})
            return subprocess.run(
                [path if path.exists() else program, *arguments],
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
            )

    def tables(self) -> str:
        """What nftables holds, as its own tool prints it."""
        return self.run("nft", "list", "ruleset").stdout

    def legacy_tables(self) -> str:
        """The IPv4 rules of iptables-legacy."""
        return self.run("iptables-legacy-save").stdout

    def get(self, port: int, path: str, address: str = "127.0.0.1") -> tuple[int, str]:
        """Status and body of a request. Status 0 if there is no answer."""
        with self.network.inside():
            connection = http.client.HTTPConnection(address, port, timeout=LIMIT_SECONDS)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.read().decode()
            except OSError:
                return 0, ""
            finally:
                connection.close()

    def listen(self, address: str, port: int) -> socket.socket:
        """A listening socket of another program."""
        with self.network.inside():
            return socket.create_server((address, port))

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, lambda: f"{what} did not happen; the log:\n{self.log[-3000:]}")

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """End it with SIGTERM. Return the exit code."""
        process.send_signal(signal.SIGTERM)
        return process.wait(LIMIT_SECONDS)

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.wait()
