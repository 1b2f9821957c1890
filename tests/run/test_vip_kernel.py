"""One address on several hosts: the files under deploy/plain-host, with the real keepalived."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.host import Host
from tests.support.waiting import LIMIT_SECONDS, wait_until

from kpctl.places.network import PrivateNetwork

pytestmark = pytest.mark.kernel

PLAIN_HOST = Path(__file__).parents[2] / "deploy" / "plain-host"
VIP = "198.51.100.1"
SERVICES = f"services: {{web: {{listen: {VIP}:80, to: [198.51.100.11:8080]}}}}\n"
_SERVE = """
import http.server, sys
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.client_address[0].encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer((sys.argv[1], 8080), Hello).serve_forever()
"""


class Router(Host):
    """A host with a proxy, and a keepalived that may give it the address."""

    def __init__(self, network: PrivateNetwork, directory: Path, address: str) -> None:
        directory.mkdir()
        super().__init__(network, directory)
        self.address = address
        self._directory = directory
        (self.manifests / "services.yaml").write_text(SERVICES)

    def serve(self) -> None:
        self.proxy = self.start("--proxy-mode=nftables")

    def keep_alive(self, priority: int) -> subprocess.Popen[bytes]:
        text = (PLAIN_HOST / "keepalived.conf").read_text()
        assert "priority 100" in text and f"{VIP}/24" in text
        config = self._directory / "keepalived.conf"
        config.write_text(text.replace("priority 100", f"priority {priority}"))
        names = ("pid", "vrrp_pid", "checkers_pid")
        pids = [f"--{name}={self._directory / name}" for name in names]
        argv = ["keepalived", "--dont-fork", "--vrrp", f"--use-file={config}", *pids]
        with (self._directory / "keepalived.log").open("wb") as log:
            return subprocess.Popen(
                [*self.network.command, *argv, "--log-console"], stdout=log, stderr=log
            )

    @property
    def has_address(self) -> bool:
        return f" {VIP}/" in self.run("ip", "-4", "-o", "addr", "show", "dev", "eth0").stdout

    def say(self) -> str:
        return (self._directory / "keepalived.log").read_text()[-3000:] + self.log[-2000:]


@pytest.fixture
def routers(tmp_path: Path) -> Iterator[tuple[Router, Router, Host]]:
    """Two routers and the network of their servers and clients."""
    if shutil.which("keepalived") is None:
        pytest.skip("KEEPALIVED IS NOT INSTALLED: addresses of several hosts are not tested")
    with contextlib.ExitStack() as stack:
        lan = stack.enter_context(contextlib.closing(PrivateNetwork()))
        _ip(lan, "link add br0 type bridge")
        for last in (11, 20):
            _ip(lan, f"addr add 198.51.100.{last}/24 dev br0")
        _ip(lan, "link set br0 up")
        made: list[Router] = []
        for last in (2, 3):
            network = stack.enter_context(contextlib.closing(PrivateNetwork()))
            address = f"198.51.100.{last}"
            _plug_in(network, lan, address, f"port{last}")
            made.append(Router(network, tmp_path / address, address))
            stack.callback(made[-1].close)
        server = subprocess.Popen([*lan.command, sys.executable, "-c", _SERVE, "198.51.100.11"])
        stack.callback(server.wait)
        stack.callback(server.kill)
        (tmp_path / "lan").mkdir()
        yield made[0], made[1], Host(lan, tmp_path / "lan")


def _ip(network: PrivateNetwork, text: str) -> None:
    subprocess.run([*network.command, "ip", *text.split()], check=True)


def _plug_in(network: PrivateNetwork, lan: PrivateNetwork, address: str, port: str) -> None:
    with lan.namespace.open() as there:
        peer = f"type veth peer name {port} netns /proc/self/fd/{there.fileno()}".split()
        argv = [*network.command, "ip", "link", "add", "eth0", *peer]
        subprocess.run(argv, check=True, pass_fds=[there.fileno()])
    _ip(lan, f"link set {port} master br0 up")
    _ip(network, f"addr add {address}/24 dev eth0")
    _ip(network, "link set eth0 up")
    subprocess.run([*network.command, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"], check=True)


def _through(client: Host) -> str:
    """Which router a connection to the address goes through, as the server sees it."""
    asked = client.run("curl", "--silent", "--max-time", "5", f"http://{VIP}/")
    return asked.stdout


def test_the_address_moves_to_a_host_whose_proxy_serves(
    routers: tuple[Router, Router, Host],
) -> None:
    first, second, client = routers
    with contextlib.ExitStack() as stack:
        for router, priority in ((first, 150), (second, 100)):
            router.serve()
            keepalived = router.keep_alive(priority)
            stack.callback(keepalived.wait, LIMIT_SECONDS)
            stack.callback(keepalived.terminate)

        def say() -> str:
            return first.say() + second.say()

        wait_until(lambda: _through(client) == first.address, say)
        # One that hears nothing for three seconds takes the address as well, until it does again.
        wait_until(lambda: not second.has_address, say)
        first.stop(first.proxy)  # its rules stay, but nothing keeps them up to date
        wait_until(lambda: _through(client) == second.address, say)
        wait_until(lambda: not first.has_address, say)
        first.serve()
        wait_until(lambda: _through(client) == first.address, say)


def test_the_example_is_in_force_as_it_stands(tmp_path: Path) -> None:
    """Every Service of the example can be used, in the mode with all algorithms it names."""
    with contextlib.closing(PrivateNetwork()) as network:
        done = Host(network, tmp_path).run(
            "kpctl", "check", "--strict", "--mode", "nftables", PLAIN_HOST / "services.yaml"
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 Services can be used.\n"
