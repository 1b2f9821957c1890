"""Addresses of the cluster, the wires between its machines, and the network of a node's pods.

The machine of the control plane has the switch that the nodes are plugged into. Pods are on a
bridge of their node (CNI's `bridge` plugin), and the machines route between the nodes. Everything
has an address of either family.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

import msgspec

from kpctl.kubernetes.machine import Machine
from kubeproxy.errors import KernelError

CONTROL = ("172.31.77.1", "fd00:77::1")
SERVICE_CIDRS = "10.96.0.0/16,fd00:10:96::/112"
CLUSTER_CIDRS = "10.244.0.0/16,fd00:10:244::/56"
DNS_ADDRESSES = ("10.96.0.10", "fd00:10:96::a")
API_ADDRESS = "10.96.0.1"
DOMAIN = "cluster.local"
_ZONES = 3


class NodePlace(msgspec.Struct, frozen=True):
    """A node by its number: name, zone and addresses."""

    number: int

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def zone(self) -> str:
        return f"zone-{(self.number - 1) % _ZONES + 1}"

    @property
    def addresses(self) -> tuple[str, str]:
        return f"172.31.77.{10 + self.number}", f"fd00:77::{10 + self.number}"

    @property
    def pod_cidrs(self) -> tuple[str, str]:
        return f"10.244.{self.number}.0/24", f"fd00:10:244:{self.number}::/64"


def connect(control: Machine, nodes: Sequence[tuple[NodePlace, Machine]]) -> None:
    """Wire the machines and give them addresses and routes."""
    open_switch(control)
    places = [place for place, _ in nodes]
    for place, machine in nodes:
        cable = f"link add {_port(place)} type veth peer name eth0 netns {machine.holder}"
        _plug_in(control, place, cable)
    for place, machine in nodes:
        configure(machine, place, places)


def open_switch(control: Machine) -> None:
    """Make the switch that nodes are plugged into."""
    _ip(control, ["link add lan0 type bridge mcast_snooping 0", *_up("lan0", CONTROL)])


def connect_tap(control: Machine, place: NodePlace) -> str:
    """Plug a node in whose other end is a virtual machine. Return the name of the tap."""
    _plug_in(control, place, f"tuntap add {_port(place)} mode tap")
    return _port(place)


def configure(machine: Machine, place: NodePlace, places: Sequence[NodePlace]) -> None:
    """Give a node's eth0 its addresses, and routes to the pods of the other nodes."""
    routes = [line for other in places if other != place for line in _pod_routes(other)]
    gateways = [f"route add default via {gateway}" for gateway in CONTROL]
    _ip(machine, [*_up("eth0", place.addresses), *routes, *gateways])


def _port(place: NodePlace) -> str:
    return f"node{place.number}"


def _plug_in(control: Machine, place: NodePlace, cable: str) -> None:
    up = f"link set {_port(place)} master lan0 up"
    _ip(control, [cable, up, *_pod_routes(place)])


def pod_network(place: NodePlace) -> str:
    """CNI's configuration of a node."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isDefaultGateway": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": c}] for c in place.pod_cidrs]},
    }
    host_ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    tree = {"cniVersion": "1.0.0", "name": "lab", "plugins": [bridge, host_ports]}
    return json.dumps(tree, indent=2)


def _up(device: str, addresses: tuple[str, str]) -> list[str]:
    ipv4, ipv6 = addresses
    return [
        f"link set {device} up",
        f"addr add {ipv4}/24 dev {device}",
        f"addr add {ipv6}/64 dev {device} nodad",
    ]


def _pod_routes(place: NodePlace) -> list[str]:
    pairs = zip(place.pod_cidrs, place.addresses, strict=True)
    return [f"route add {cidr} via {address}" for cidr, address in pairs]


def _ip(machine: Machine, lines: Sequence[str]) -> None:
    """Run `ip` commands in a machine's network, but with the host's numbers of processes."""
    done = subprocess.run(
        ["nsenter", f"--net={machine.network}", "ip", "-batch", "-"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise KernelError(f"{machine.name}: ip failed: {done.stderr.strip()}")
