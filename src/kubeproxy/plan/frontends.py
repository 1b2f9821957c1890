"""Which service port a flow belongs to: plans by the places where their traffic arrives. Pure.

Kept up to date Service by Service, so that a change costs the size of the Service. Where several
service ports claim one place, the smallest has it, as in the ledger.

Places are compared as they stand in a flow: protocol, packed address, packed port.
"""

from __future__ import annotations

from collections.abc import Iterable

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.plan.conntrack import PORT_BYTES, Socket, pack_socket
from kubeproxy.plan.types import ServicePlan


class Frontends:
    """The frontends of one family's plans."""

    def __init__(self, node: NodeFacts, plans: Iterable[ServicePlan] = ()) -> None:
        self._owners: dict[tuple[Protocol, Socket], tuple[ServicePlan, ...]] = {}
        self.set_node(node)
        self.add(plans)

    def set_node(self, node: NodeFacts) -> None:
        """Serve node ports on the addresses of this node."""
        self._node_addresses = frozenset(map(pack_address, node.node_port_addresses))

    def add(self, plans: Iterable[ServicePlan]) -> None:
        for plan in plans:
            for key in _keys(plan):
                others = (o for o in self._owners.get(key, ()) if o.id != plan.id)
                self._owners[key] = tuple(sorted((plan, *others), key=lambda owner: owner.id))

    def remove(self, plans: Iterable[ServicePlan]) -> None:
        for plan in plans:
            for key in _keys(plan):
                left = tuple(o for o in self._owners.get(key, ()) if o.id != plan.id)
                if left:
                    self._owners[key] = left
                else:
                    self._owners.pop(key, None)

    def find(self, protocol: Protocol, destination: Socket) -> ServicePlan | None:
        """Return the plan of the service port to which this was sent, or None."""
        owners = self._owners.get((protocol, destination))
        if owners is None and destination[:-PORT_BYTES] in self._node_addresses:
            owners = self._owners.get((protocol, destination[-PORT_BYTES:]))
        return owners[0] if owners else None


def _keys(plan: ServicePlan) -> list[tuple[Protocol, Socket]]:
    """A frontend without an address is a node port: its key is the port alone."""
    return [(plan.id.protocol, pack_socket(f.address, f.port)) for f in plan.frontends]
