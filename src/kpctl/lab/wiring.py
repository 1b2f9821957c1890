"""How a topology is wired: the `ip` commands each namespace runs, as text.

Pure: the same topology gives the same commands. Pods have a single-address (/32, /128) interface
on their node's bridge `cni0` with the node as gateway, so every packet between pods is routed by
the node, where the proxy sees it, and none is switched by the bridge alone, with or without
`br_netfilter`. The router joins nodes and clients, and per client delivers the virtual addresses to
the node that client enters at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kpctl.lab.topology import (
    NODE_CIDR,
    ROUTER,
    SERVICE_CIDR,
    VIRTUAL_CIDR,
    Addresses,
    Client,
    Node,
    Pod,
    Topology,
    nth_address,
)
from kubeproxy.facts.ids import Family

BRIDGE = "cni0"
UPLINK = "eth0"
LAN = "lan0"
_FIRST_TABLE = 100

FORWARDING = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")

SYSCTLS: Mapping[str, str] = {
    # Addresses are usable at once: no other host in here can have them.
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/default/accept_ra": "0",
    "net/ipv6/conf/default/dad_transmits": "0",
    # Packets go in and out of one bridge by design. Redirects would lead pods past the node.
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
    "net/ipv6/conf/all/accept_redirects": "0",
    "net/ipv6/conf/default/accept_redirects": "0",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    # Many probes come from one address; the kernel's rate limit would turn a reject into silence.
    "net/ipv4/icmp_ratelimit": "0",
    "net/ipv6/icmp/ratelimit": "0",
}

BRIDGE_SYSCTLS: Mapping[str, str] = {
    # Where the kernel has br_netfilter, a bridge would translate packets by itself and hand them
    # to the next port without routing them; these settings exist only there.
    "net/bridge/bridge-nf-call-iptables": "0",
    "net/bridge/bridge-nf-call-ip6tables": "0",
    "net/bridge/bridge-nf-call-arptables": "0",
}


def sysctls(name: str, topology: Topology) -> Mapping[str, str]:
    """Kernel settings of one namespace, by path under /proc/sys."""
    forwards = name == ROUTER or any(node.name == name for node in topology.nodes)
    return {**SYSCTLS, **(dict.fromkeys(FORWARDING, "1") if forwards else {})}


def link_commands(topology: Topology, namespace: Callable[[str], str]) -> tuple[str, ...]:
    """Commands run in the router's namespace that make every cable of the lab.

    A cable's ends are made directly in the namespaces they belong to, so that no interface ever
    appears anywhere else.
    """
    lines = [f"link add {LAN} type bridge mcast_snooping 0"]
    for node in topology.nodes:
        lines.append(_cable(f"n{node.index}", namespace(node.name)))
        lines.append(f"link set n{node.index} master {LAN} up")
    lines += [_cable(f"c{client.index}", namespace(client.name)) for client in topology.clients]
    return tuple(lines)


def node_link_commands(node: Node, namespace: Callable[[str], str]) -> tuple[str, ...]:
    """Commands run in a node's namespace that make its bridge and the cables to its pods."""
    lines = [f"link add {BRIDGE} type bridge mcast_snooping 0"]
    for index, pod in enumerate(node.pods):
        lines.append(_cable(f"pod{index}", namespace(pod.name)))
        lines.append(f"link set pod{index} master {BRIDGE} up")
    return tuple(lines)


def _cable(near: str, far_namespace: str) -> str:
    return f"link add {near} type veth peer name {UPLINK} netns {far_namespace}"


def address_commands(name: str, topology: Topology) -> tuple[str, ...]:
    """Commands run in one namespace once all cables exist: addresses, then routes."""
    if name == ROUTER:
        return tuple(_router(topology))
    host = topology.host(name)
    if isinstance(host, Node):
        return tuple(_node(host, topology))
    if isinstance(host, Pod):
        return tuple(_pod(host, topology.node(host.node)))
    return tuple(_client(host))


def ingress_commands(topology: Topology, family: Family) -> tuple[str, ...]:
    """Commands run in the router that lead a client's virtual addresses to its node.

    One family at a time, because a policy rule has no address that would show its family to `ip`.
    """
    lines: list[str] = []
    for client in topology.clients:
        table = _FIRST_TABLE + client.index
        via = topology.node(client.ingress).addresses.of(family)
        cidrs = (VIRTUAL_CIDR[family], SERVICE_CIDR[family])
        lines += [f"route add {cidr} via {via} table {table}" for cidr in cidrs]
        lines.append(f"rule add iif c{client.index} lookup {table}")
    return tuple(lines)


def _families(addresses: Addresses, lengths: tuple[int, int]) -> Iterator[str]:
    yield f"{addresses.ipv4}/{lengths[0]}"
    yield f"{addresses.ipv6}/{lengths[1]}"


def _up(device: str, addresses: Addresses, lengths: tuple[int, int]) -> Iterator[str]:
    yield f"link set {device} up"
    for address in _families(addresses, lengths):
        yield f"addr add {address} dev {device}{' nodad' if ':' in address else ''}"


def _defaults(gateway: Addresses, device: str) -> Iterator[str]:
    for address in (gateway.ipv4, gateway.ipv6):
        yield f"route add default via {address} dev {device}"


def _router(topology: Topology) -> Iterator[str]:
    yield "link set lo up"
    yield from _up(LAN, nth_address(NODE_CIDR, 1), (24, 64))
    for node in topology.nodes:
        yield from _pod_routes(node)
    for client in topology.clients:
        yield from _up(f"c{client.index}", client.gateway, (24, 64))


def _pod_routes(node: Node) -> Iterator[str]:
    for family in Family:
        yield f"route add {node.pod_cidr(family)} via {node.addresses.of(family)}"


def _node(node: Node, topology: Topology) -> Iterator[str]:
    yield "link set lo up"
    yield from _up(BRIDGE, node.gateway, (24, 64))
    yield from _up(UPLINK, node.addresses, (24, 64))
    for other in topology.nodes:
        if other is not node:
            yield from _pod_routes(other)
    yield from _defaults(nth_address(NODE_CIDR, 1), UPLINK)


def _pod(pod: Pod, node: Node) -> Iterator[str]:
    yield "link set lo up"
    yield from _up(UPLINK, pod.addresses, (32, 128))
    for gateway in _families(node.gateway, (32, 128)):
        yield f"route add {gateway} dev {UPLINK}"
    yield from _defaults(node.gateway, UPLINK)


def _client(client: Client) -> Iterator[str]:
    yield "link set lo up"
    yield from _up(UPLINK, client.addresses, (24, 64))
    yield from _defaults(client.gateway, UPLINK)
