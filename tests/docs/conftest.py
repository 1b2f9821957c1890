"""The two machines of the guides: a host with 192.0.2.10, and one with servers and clients."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.host import PROGRAMS

from kpctl.places.network import PrivateNetwork

_SERVE = """
import http.server, sys
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from " + sys.argv[1].encode() + b"\\n")
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer((sys.argv[1], 8080), Hello).serve_forever()
"""
_DONE = "--- done "


class Shell:
    """A bash in a network, that is given one command after the other."""

    def __init__(self, network: PrivateNetwork, directory: Path) -> None:
        path = f"{PROGRAMS}:{os.environ['PATH']}"
        self._bash = subprocess.Popen(
            [*network.command, "bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=directory,
            env={**os.environ, "PATH": path, "COLUMNS": "100", "TERM": "dumb", "PYTHONUTF8": "1"},
        )

    def run(self, text: str) -> tuple[int, str]:
        """Run a command. Return its exit code and output."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(f"{text}\ncode=$?; echo; echo '{_DONE}'$code\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            if line.startswith(_DONE):
                # The echo before the mark ends a last line that has no end of its own.
                printed = "".join(lines).removesuffix("\n")
                return int(line.removeprefix(_DONE)), printed
            lines.append(line)
        raise AssertionError("the shell has ended: " + "".join(lines))

    def close(self) -> None:
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.kill()
        self._bash.wait()
        self._bash.stdin.close()
        self._bash.stdout.close()


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[dict[str, Shell]]:
    """A shell on each machine, by prompt; both in an empty directory."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for tool in ("curl", "nft"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool.upper()} IS NOT INSTALLED: guides are not run (make packages)")
    with contextlib.ExitStack() as stack:
        host, other = (stack.enter_context(contextlib.closing(PrivateNetwork())) for _ in "ab")
        made = {"": host, "client": other}
        _connect(host, other)
        for address in ("192.0.2.11", "192.0.2.12"):
            server = subprocess.Popen([*other.command, sys.executable, "-c", _SERVE, address])
            stack.callback(server.wait)
            stack.callback(server.kill)
        yield {
            prompt: stack.enter_context(contextlib.closing(Shell(network, tmp_path)))
            for prompt, network in made.items()
        }


def _connect(host: PrivateNetwork, other: PrivateNetwork) -> None:
    def ip(network: PrivateNetwork, text: str) -> None:
        subprocess.run([*network.command, "ip", *text.split()], check=True)

    with other.namespace.open() as there:
        peer = f"type veth peer name eth0 netns /proc/self/fd/{there.fileno()}".split()
        argv = [*host.command, "ip", "link", "add", "eth0", *peer]
        subprocess.run(argv, check=True, pass_fds=[there.fileno()])
    ip(host, "addr add 192.0.2.10/24 dev eth0")
    for last in (11, 12, 20):
        ip(other, f"addr add 192.0.2.{last}/24 dev eth0")
    for network in (host, other):
        ip(network, "link set eth0 up")
