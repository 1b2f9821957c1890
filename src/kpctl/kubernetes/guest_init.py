"""Runs inside a guest kernel: a node as on the host, with the guest's network card as its eth0.

`start` is what the host calls (see `guest_node`). A call ends, so another process holds the node
until the guest ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from kpctl.kubernetes.cgroups import make_cgroups
from kpctl.kubernetes.machine import Machine
from kpctl.kubernetes.network import NodePlace, configure
from kpctl.kubernetes.node import Credentials, Node
from kpctl.kubernetes.ssh import allow_logins
from kubeproxy.kernel.modules import load_module

_MEMORY = Path("/mnt")
"""Where the guest may write, and which a machine's own mounts do not hide."""
FOLDER = _MEMORY / "node"
_CGROUP = "/node"
_MODULES = ("overlay", "br_netfilter", "veth", "ip_vs", "dummy")
"""What pods and the proxy cannot load: the files of modules are not in their view."""
# nf_tables does not work in user-mode Linux.
_LEGACY_TOOLS = """
for tool in iptables ip6tables; do for end in '' -save -restore; do
  ln -sf "$(command -v xtables-legacy-multi)" /usr/local/sbin/$tool$end
done; done
"""


class GuestSpec(msgspec.Struct, frozen=True):
    """A node in a guest: its number and those of all, its network card, its files."""

    number: int
    numbers: tuple[int, ...]
    card: str
    archives: tuple[str, ...]
    credentials: Credentials
    login_key: str = ""
    is_user_mode: bool = False


def start(encoded: str, cache: str) -> object:
    """Start a node with the programs in a cache. Return an empty text, or what went wrong."""
    options = ("-o", "size=75%")
    subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(_MEMORY)], check=True)
    FOLDER.mkdir()
    with (FOLDER / "log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "kpctl.kubernetes.guest_init", encoded],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "XDG_CACHE_HOME": cache},
        )
    assert keeper.stdout is not None
    is_up = keeper.stdout.readline() == b"up\n"
    return "" if is_up else (FOLDER / "log").read_text()[-2000:]


def log(program: str, lines: int) -> object:
    """The end of the log of one of the node's programs."""
    (path,) = FOLDER.glob(f"node-*/{program}.log")
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def main() -> None:
    spec = msgspec.json.decode(sys.argv[1], type=GuestSpec)
    for module in _MODULES:
        asyncio.run(load_module(module))
    subprocess.run(["mount", "-t", "cgroup2", "cgroup", "/sys/fs/cgroup"], check=True)
    make_cgroups(_CGROUP)
    machine = _machine(spec)
    node = Node(NodePlace(spec.number), machine, cgroup=_CGROUP)
    node.start_containerd()
    node.load([Path(archive) for archive in spec.archives])
    node.start_kubelet(spec.credentials)
    if spec.login_key:
        allow_logins(machine, spec.login_key)
    print("up", flush=True)
    signal.pause()


def _machine(spec: GuestSpec) -> Machine:
    """A machine that has the guest's network card."""
    place = NodePlace(spec.number)
    machine = Machine(place.name, FOLDER / place.name)
    first = ("nsenter", "--net=/proc/1/ns/net", "ip", "link", "set", spec.card)
    subprocess.run([*first, "netns", str(machine.holder), "name", "eth0"], check=True)
    configure(machine, place, [NodePlace(number) for number in spec.numbers])
    if spec.is_user_mode:
        machine.run("sh", "-c", _LEGACY_TOOLS)
        _show_clock(machine)
    return machine


def _show_clock(machine: Machine) -> None:
    """Let the kubelet find the speed of the processor, without which it does not start."""
    shown = machine.folder / "cpuinfo"
    shown.write_text(Path("/proc/cpuinfo").read_text().rstrip() + "\ncpu MHz\t\t: 1000.000\n\n")
    machine.run("mount", "--bind", str(shown), "/proc/cpuinfo")


if __name__ == "__main__":
    main()
