"""A guest kernel with a wire is a host on the network at its other end."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.places import guest_address
from tests.support.waiting import LIMIT_SECONDS

from kpctl.places.guest import Wire
from kpctl.places.network import PrivateNetwork
from kpctl.places.uml import UserModeKernel, missing

pytestmark = pytest.mark.uml
HERE, THERE = "192.0.2.1", "192.0.2.2"
TAP = ("tuntap add tap0 mode tap", "link set tap0 up", f"addr add {HERE}/24 dev tap0")


@pytest.fixture
def network() -> Iterator[PrivateNetwork]:
    """A network with a tap."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if not os.access("/dev/net/tun", os.W_OK):
        pytest.skip("this kernel has no tap devices (/dev/net/tun)")
    private = PrivateNetwork()
    try:
        lines = "".join(f"{line}\n" for line in TAP)
        subprocess.run([*private.command, "ip", "-batch", "-"], input=lines, text=True, check=True)
        yield private
    finally:
        private.close()


def test_a_guest_answers_on_its_wire(network: PrivateNetwork) -> None:
    """Its kernel refuses a connection to a port without a server."""
    if reason := missing():
        pytest.skip(reason)
    file = Path(guest_address.__file__)
    with UserModeKernel(wire=Wire(network.namespace, "tap0")) as guest:
        wrong = guest.call(
            file, "configure", guest.card, f"{THERE}/24", timeout_seconds=LIMIT_SECONDS
        )
        assert wrong == ""
        with network.inside():
            client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with client, pytest.raises(ConnectionRefusedError):
            client.settimeout(LIMIT_SECONDS)
            client.connect((THERE, 7))
