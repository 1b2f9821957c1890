"""What the UDP flows of a service port are like in this mode. Pure.

Here a flow is translated to a proxy port, not to an endpoint, and the carrier chooses the endpoint
of a datagram. So endpoints come and go without touching a flow. It is stale only if it began before
its portal was opened, or was diverted to a port that is closed now.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.userspace.items import Learned, Listener
from kubeproxy.plan.conntrack import NO_FLOWS, FlowRule, FlowRules, Socket, Standing, pack_socket
from kubeproxy.plan.types import PoolName, ServicePlan


def portal_flow_rules(plan: ServicePlan | None, node: NodeFacts, learned: Learned) -> FlowRules:
    """Flows to a portal go to the proxy ports of its service port, as they are open now."""
    if plan is None or plan.id.protocol is not Protocol.UDP:
        return NO_FLOWS
    sockets = _proxy_sockets(plan.id, learned.ports, node)
    if not sockets:
        # Nothing listens (no port was free): packets are not diverted.
        return NO_FLOWS
    rule = FlowRule(Standing.SERVED, sockets)
    return {pack_socket(f.address, f.port): rule for f in plan.frontends if f.accepts_anyone}


def _proxy_sockets(
    owner: ServicePortId, ports: Mapping[Listener, int], node: NodeFacts
) -> frozenset[Socket]:
    """Where flows of this service port are diverted to: its proxy ports on any of our addresses.

    REDIRECT takes the address of the interface a packet came in by, so any may be in a flow.
    """
    keys = (Listener(owner, pool) for pool in PoolName)
    found = [ports[key] for key in keys if key in ports]
    return frozenset(pack_socket(address, port) for address in node.addresses for port in found)
