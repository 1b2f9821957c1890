"""The daemon with few privileges, in the current network namespace, with traffic through it.

Runs on the host (inside a namespace of the test) and inside the user-mode kernel alike: all it
needs is our program.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.objects_text import service_text, slice_text
from tests.support.waiting import LIMIT_SECONDS, wait_until

CLUSTER_IP, NODE_IP, POD_IP = "10.96.0.10", "192.0.2.7", "10.244.1.5"
MANIFEST = service_text(
    CLUSTER_IP,
    ports="{name: http, port: 80, nodePort: 30080}",
    spec="type: NodePort, sessionAffinity: ClientIP",
) + slice_text(POD_IP)
QUIET_HOST = (
    # What reaches beyond a network namespace, or is no matter of capabilities.
    *("--conntrack-max-per-core=0", "--oom-score-adj=0"),
    *("--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249"),
    f"--nodeport-addresses={NODE_IP}/32",
)
FRONTENDS = {"cluster IP": (CLUSTER_IP, 80), "node port": (NODE_IP, 30080)}
Confine = Callable[[Sequence[str]], Sequence[str]]
Outcome = dict[str, object]


def with_capabilities(names: Sequence[str]) -> Confine:
    """Return what makes a command line run as root with these capabilities and no others."""
    kept = "".join(f",+{name.lower()}" for name in names)
    words = ("setpriv", f"--bounding-set=-all{kept}", "--inh-caps=-all", "--no-new-privs")
    return lambda argv: [*words, *argv]


def serve_with_capabilities(mode: str, names: Sequence[str], folder: str) -> Outcome:
    """For the user-mode kernel, whose calls take plain values."""
    return serve(mode, with_capabilities(names), Path(folder))


def serve(
    mode: str,
    confine: Confine,
    folder: Path,
    *,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Prepare with --init-only and full privileges, then run confined until traffic passes.

    Return which frontends answered, the exit code if the daemon ended by itself, and its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "web.yaml").write_text(MANIFEST)
    argv = [sys.executable, "-m", "kubeproxy", f"--manifests={folder / 'web.yaml'}"]
    argv += [f"--proxy-mode={mode}", "--v=2", *QUIET_HOST, *flags]
    env = {**os.environ, **(environment or {})}
    log = folder / "log"
    with log.open("wb") as output, pod():
        subprocess.run([*argv, "--init-only"], stdout=output, stderr=output, env=env, check=True)
        process = subprocess.Popen(confine(argv), stdout=output, stderr=output, env=env)
        try:
            answered = answers(process.poll)
        finally:
            code = process.poll()
            process.terminate()
            process.wait(LIMIT_SECONDS)
    return {"code": code, "answered": answered, "log": log.read_text()}


@contextlib.contextmanager
def pod() -> Iterator[None]:
    """An address of the node, and one of a pod that answers `web`, all on loopback."""
    ip("link", "set", "lo", "up")
    ip("address", "replace", f"{NODE_IP}/32", "dev", "lo")
    ip("address", "replace", f"{POD_IP}/32", "dev", "lo")
    ip("route", "replace", "10.96.0.0/16", "dev", "lo", "src", NODE_IP)
    with socket.create_server((POD_IP, 8080)) as server:
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
        yield
        server.shutdown(socket.SHUT_RDWR)  # wakes the thread


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _answer(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"web")


def answers(exit_code: Callable[[], int | None]) -> list[str]:
    """The frontends that answer before the daemon has an exit code, or patience ends."""
    found: set[str] = set()

    def is_over() -> bool:
        found.update(name for name, place in FRONTENDS.items() if is_answered(place))
        return found == FRONTENDS.keys() or exit_code() is not None

    with contextlib.suppress(AssertionError):  # what does not answer is not among the results
        wait_until(is_over)
    return sorted(found)


def is_answered(place: tuple[str, int]) -> bool:
    """Does a connection to this frontend reach the pod?"""
    try:
        with socket.create_connection(place, timeout=2) as connection:
            return connection.recv(16) == b"web"
    except OSError:
        return False
