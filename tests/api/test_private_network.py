"""The network of the API server: separate from ours, and gone with the process that made it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import wait_until

from kpctl.places.network import PrivateNetwork

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

ORPHAN = """
import subprocess, sys, time
from kpctl.places.network import PrivateNetwork
network = PrivateNetwork()
subprocess.Popen([*network.command, "sleep", sys.argv[1]])
print(network.namespace.readlink(), flush=True)
time.sleep(600)
"""


def test_inside_there_is_only_loopback_and_outside_nothing_changed() -> None:
    home = Path("/proc/thread-self/ns/net").readlink()
    network = PrivateNetwork()
    try:
        with network.inside():
            assert Path("/proc/thread-self/ns/net").readlink() != home
            assert [name for _, name in socket.if_nameindex()] == ["lo"]
            with socket.create_server(("127.0.0.1", 6443)) as server:
                socket.create_connection(server.getsockname()).close()
        assert Path("/proc/thread-self/ns/net").readlink() == home
    finally:
        network.close()


def test_a_killed_owner_takes_everything_inside_with_it() -> None:
    seconds = f"54{os.getpid()}"
    owner = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, seconds], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    namespace = owner.stdout.readline().strip()
    wait_until(lambda: namespace in namespaces_of(f"sleep\0{seconds}\0"))
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not namespaces_of(f"sleep\0{seconds}\0"))


def namespaces_of(command: str) -> set[str]:
    """The network namespaces of all processes with this command line."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cmdline").read_text() == command:
                found.add(str(process.joinpath("ns/net").readlink()))
        except OSError:
            continue
    return found
