"""Which UDP flows the kernel must forget, in this mode. Pure.

Here a flow is translated to a proxy port, not to an endpoint, and the carrier chooses the endpoint
of a datagram. So endpoints come and go without touching a flow. It is stale only if it began before
its portal was opened, or was diverted to a port that is closed now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.userspace.items import Learned, Listener
from kubeproxy.plan.conntrack import PlanChange, Socket, StaleRules, pack_socket
from kubeproxy.plan.types import PoolName, ServicePlan


def stale_portal_flows(
    changes: Iterable[PlanChange],
    node: NodeFacts,
    learned: Learned,
    closed: Mapping[Listener, int],
) -> StaleRules:
    """Rules for the portals that were opened or closed; `closed` are listeners no longer open."""
    ports = {**closed, **learned.ports}
    serving: dict[Socket, frozenset[Socket]] = {}
    removed: dict[Socket, frozenset[Socket]] = {}
    for before, after in changes:
        old, new = portals(before), portals(after)
        held = before if after is None else after
        if held is None or old == new:
            continue
        targets = _proxy_sockets(held.id, ports, node)
        serving |= dict.fromkeys(new, targets)
        removed |= dict.fromkeys(old - new, targets)
    addresses = frozenset(map(pack_address, node.node_port_addresses))
    return StaleRules(serving, removed, addresses)


def portals(plan: ServicePlan | None) -> frozenset[Socket]:
    """Where datagrams are diverted for a service port."""
    if plan is None or plan.id.protocol is not Protocol.UDP:
        return frozenset()
    return frozenset(pack_socket(f.address, f.port) for f in plan.frontends if f.accepts_anyone)


def _proxy_sockets(
    owner: ServicePortId, ports: Mapping[Listener, int], node: NodeFacts
) -> frozenset[Socket]:
    """Where flows of this service port are diverted to: its proxy ports on any of our addresses.

    REDIRECT takes the address of the interface a packet came in by, so any may be in a flow.
    """
    keys = (Listener(owner, pool) for pool in PoolName)
    found = [ports[key] for key in keys if key in ports]
    return frozenset(pack_socket(address, port) for address in node.addresses for port in found)
