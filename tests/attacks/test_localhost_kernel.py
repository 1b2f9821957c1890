"""CVE-2020-8558: a neighbour on the same network reaches what listens on the node's loopback.

iptables mode sets route_localnet, so that node ports work on localhost, and with it the kernel
accepts packets to 127.0.0.0/8 from anywhere. Rules must drop them. Other modes must not set it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.host import Host
from tests.support.served import WEB, until_programmed, write
from tests.support.waiting import LIMIT_SECONDS

from kpctl.places.network import PrivateNetwork

pytestmark = pytest.mark.kernel

PORT = 1234
_ALL_FRAMES, _LOOPBACK = 3, socket.inet_aton("127.0.0.1")
NODE_IP, NEIGHBOUR_IP = "192.0.2.1", "192.0.2.2"


class Neighbour:
    """Another machine on the same link, which sends packets for 127.0.0.1 to the node."""

    def __init__(self, host: Host) -> None:
        self.network = PrivateNetwork()
        words = ("type", "veth", "peer", "name", "lan", "netns", str(self.network.namespace))
        assert host.run("ip", "link", "add", "lan", *words).returncode == 0
        host.run("ip", "address", "add", f"{NODE_IP}/24", "dev", "lan")
        host.run("ip", "link", "set", "lan", "up")
        self._ip("address", "add", f"{NEIGHBOUR_IP}/24", "dev", "lan")
        self._ip("link", "set", "lan", "up")
        self._ip("route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local")
        self._ip("route", "del", "local", "127.0.0.1", "dev", "lo", "table", "local")
        self._ip("route", "add", "127.0.0.1/32", "via", NODE_IP, "src", NEIGHBOUR_IP)
        with self.network.inside():
            Path("/proc/sys/net/ipv4/conf/all/route_localnet").write_text("1")

    def _ip(self, *words: str) -> None:
        with self.network.inside():
            subprocess.run(["ip", *words], check=False, capture_output=True)

    def gets_an_answer_from_loopback(self) -> bool:
        """Is a SYN to 127.0.0.1 answered, by the time that one to the node's own address is?

        Its own kernel would drop the answer, so it is looked for on the link.
        """
        with contextlib.ExitStack() as opened, self.network.inside():
            link = opened.enter_context(
                socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_FRAMES))
            )
            link.bind(("lan", _ALL_FRAMES))
            link.setblocking(False)
            attack = opened.enter_context(socket.socket())
            attack.setblocking(False)
            attack.bind((NEIGHBOUR_IP, 0))
            attack.connect_ex(("127.0.0.1", PORT))
            plain = socket.create_connection((NODE_IP, PORT), timeout=LIMIT_SECONDS)
            opened.enter_context(plain)
            return any(packet[12:16] == _LOOPBACK for packet in frames(link))


def frames(link: socket.socket) -> Iterator[bytes]:
    """The IP packets that were seen so far."""
    with contextlib.suppress(BlockingIOError):
        while True:
            yield link.recv(2000)


@pytest.fixture
def neighbour(host: Host) -> Iterator[Neighbour]:
    found = Neighbour(host)
    with contextlib.closing(found.network):
        yield found


def is_localnet_routed(host: Host) -> bool:
    with host.network.inside():
        return Path("/proc/sys/net/ipv4/conf/all/route_localnet").read_text().strip() == "1"


def test_the_attack_works_without_rules(host: Host, neighbour: Neighbour) -> None:
    """Otherwise the next test shows nothing."""
    with host.listen("127.0.0.1", PORT), host.listen(NODE_IP, PORT):
        assert not neighbour.gets_an_answer_from_loopback()
        with host.network.inside():
            Path("/proc/sys/net/ipv4/conf/all/route_localnet").write_text("1")
        assert neighbour.gets_an_answer_from_loopback()


@pytest.mark.parametrize("mode", ["iptables", "nftables", "userspace"])
def test_a_neighbour_does_not_reach_the_nodes_loopback(
    host: Host, neighbour: Neighbour, mode: str
) -> None:
    write(host, "web.yaml", WEB)
    host.start(f"--proxy-mode={mode}", f"--bind-address={NODE_IP}")
    until_programmed(host, "10.96.0.10")
    assert is_localnet_routed(host) == (mode == "iptables")
    with host.listen("127.0.0.1", PORT), host.listen(NODE_IP, PORT):
        assert not neighbour.gets_an_answer_from_loopback()
