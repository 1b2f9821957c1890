"""A small cluster as a value: which nodes, which pods on them, which clients outside.

A short YAML text names hosts, and this module gives each of them an address in both families. It
promises that equal texts give equal clusters and that addresses never collide. It creates nothing:
`wiring` holds the commands that build it, and `namespaces` runs them.

    nodes:
      node-a: {zone: zone-a, pods: [web-1, web-2]}
      node-b: {zone: zone-b, pods: [web-3]}
    clients:
      outside: node-a        # traffic of this client to virtual addresses is delivered to node-a
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from kubeproxy.errors import ConfigError
from kubeproxy.facts.ids import Family

POD_CIDR = {Family.IPV4: "10.244.0.0/16", Family.IPV6: "fd00:10:244::/48"}
SERVICE_CIDR = {Family.IPV4: "10.96.0.0/16", Family.IPV6: "fd00:10:96::/112"}
NODE_CIDR = {Family.IPV4: "192.0.2.0/24", Family.IPV6: "fd00:c0:2::/64"}
VIRTUAL_CIDR = {Family.IPV4: "203.0.113.0/24", Family.IPV6: "fd00:cb:113::/64"}
CLIENT_CIDR = {Family.IPV4: "198.18.0.0/16", Family.IPV6: "fd00:c6:12::/48"}

_FIRST_HOST = 10
_LIMIT = 200
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
ROUTER = "router"


class Addresses(msgspec.Struct, frozen=True):
    """One address per family."""

    ipv4: str
    ipv6: str

    def of(self, family: Family) -> str:
        return self.ipv4 if family is Family.IPV4 else self.ipv6


class Pod(msgspec.Struct, frozen=True):
    """A pod: a namespace of its own behind a node."""

    name: str
    node: str
    addresses: Addresses


class Node(msgspec.Struct, frozen=True):
    """A node, which forwards for its pods and runs the proxy."""

    name: str
    index: int
    zone: str
    addresses: Addresses
    gateway: Addresses
    pods: tuple[Pod, ...]

    def pod_cidr(self, family: Family) -> str:
        """The network of this node's pods."""
        length = 24 if family is Family.IPV4 else 64
        return str(ipaddress.ip_network(f"{self.gateway.of(family)}/{length}", strict=False))


class Client(msgspec.Struct, frozen=True):
    """A host outside the cluster. `ingress` is the node that gets its virtual-address traffic."""

    name: str
    index: int
    ingress: str
    addresses: Addresses
    gateway: Addresses


Host: TypeAlias = Node | Pod | Client


class Topology(msgspec.Struct, frozen=True):
    """The whole cluster. Lookups raise a `ConfigError` that names the hosts there are."""

    nodes: tuple[Node, ...]
    clients: tuple[Client, ...]

    @property
    def pods(self) -> tuple[Pod, ...]:
        return tuple(pod for node in self.nodes for pod in node.pods)

    @property
    def names(self) -> tuple[str, ...]:
        """Every namespace this cluster needs."""
        return (ROUTER, *(host.name for host in self.hosts))

    @property
    def hosts(self) -> tuple[Host, ...]:
        return (*self.nodes, *self.pods, *self.clients)

    def host(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(self.names[1:])
        raise ConfigError(f"the topology has no host {name!r}; it has {known}")

    def node(self, name: str) -> Node:
        host = self.host(name)
        if not isinstance(host, Node):
            raise ConfigError(f"{name!r} is not a node of the topology")
        return host

    def entry_node(self, name: str) -> Node:
        """The node that first sees a packet of this host to a virtual address."""
        host = self.host(name)
        if isinstance(host, Node):
            return host
        return self.node(host.node if isinstance(host, Pod) else host.ingress)

    def addresses_of_node(self, name: str, family: Family) -> tuple[str, ...]:
        """Addresses a packet masqueraded by this node can carry."""
        node = self.node(name)
        return (node.addresses.of(family), node.gateway.of(family))

    def owner(self, address: str) -> str | None:
        """The host that has this address, if any."""
        for host in self.hosts:
            if address in (host.addresses.ipv4, host.addresses.ipv6):
                return host.name
        for node in self.nodes:
            if address in (node.gateway.ipv4, node.gateway.ipv6):
                return node.name
        return None


class _NodeText(msgspec.Struct, forbid_unknown_fields=True):
    zone: str = ""
    pods: list[str] = []


class _TopologyText(msgspec.Struct, forbid_unknown_fields=True):
    nodes: dict[str, _NodeText]
    clients: dict[str, str] = {}


def parse_topology(text: str) -> Topology:
    """Parse a topology from its YAML text. Raises ConfigError."""
    import yaml

    try:
        data = yaml.safe_load(text)
        declared = msgspec.convert(data, _TopologyText)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"the topology cannot be read: {error}") from error
    _check(declared)
    nodes = tuple(_node(i, name, node) for i, (name, node) in enumerate(declared.nodes.items()))
    clients = tuple(_client(i, name, via) for i, (name, via) in enumerate(declared.clients.items()))
    return Topology(nodes=nodes, clients=clients)


def nth_address(cidr: Mapping[Family, str], number: int) -> Addresses:
    """The address with this number in the network of each family."""
    ipv4, ipv6 = ipaddress.ip_network(cidr[Family.IPV4]), ipaddress.ip_network(cidr[Family.IPV6])
    return Addresses(str(ipv4[number]), str(ipv6[number]))


def _check(declared: _TopologyText) -> None:
    if not 1 <= len(declared.nodes) <= _LIMIT or len(declared.clients) > _LIMIT:
        raise ConfigError(f"a topology has 1 to {_LIMIT} nodes and at most {_LIMIT} clients")
    seen = {ROUTER}
    for name in _declared_names(declared):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no host name: use lower-case letters, digits, hyphens")
        if name in seen:
            raise ConfigError(f"the topology names {name!r} twice (or it is the router's name)")
        seen.add(name)
    for client, ingress in declared.clients.items():
        if ingress not in declared.nodes:
            raise ConfigError(f"client {client!r} enters at {ingress!r}, which is not a node")
    for name, node in declared.nodes.items():
        if len(node.pods) > _LIMIT:
            raise ConfigError(f"node {name!r} has more than {_LIMIT} pods")


def _declared_names(declared: _TopologyText) -> Iterator[str]:
    for name, node in declared.nodes.items():
        yield name
        yield from node.pods
    yield from declared.clients


def _addresses(ipv4: str, ipv6: str) -> Addresses:
    """Canonical spelling, so that equal addresses are equal strings."""
    return Addresses(ipv4, str(ipaddress.IPv6Address(ipv6)))


def _pod_addresses(node_index: int, host: int) -> Addresses:
    return _addresses(f"10.244.{node_index}.{host}", f"fd00:10:244:{node_index:x}::{host:x}")


def _node(index: int, name: str, text: _NodeText) -> Node:
    pods = tuple(
        Pod(name=pod, node=name, addresses=_pod_addresses(index, _FIRST_HOST + i))
        for i, pod in enumerate(text.pods)
    )
    return Node(
        name=name,
        index=index,
        zone=text.zone,
        addresses=nth_address(NODE_CIDR, _FIRST_HOST + index),
        gateway=_pod_addresses(index, 1),
        pods=pods,
    )


def _client_addresses(index: int, host: int) -> Addresses:
    return _addresses(f"198.18.{index}.{host}", f"fd00:c6:12:{index:x}::{host:x}")


def _client(index: int, name: str, ingress: str) -> Client:
    return Client(
        name=name,
        index=index,
        ingress=ingress,
        addresses=_client_addresses(index, _FIRST_HOST),
        gateway=_client_addresses(index, 1),
    )
