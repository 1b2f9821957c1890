"""Flows grouped by service port and endpoint, with the stale ones and why. Pure.

A flow is stale if it goes to an endpoint that the plan no longer uses. New connections do not, but
an established one goes on where it began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import astuple

from kubeproxy.facts.address import contained_in_any, join_host_port, unpack_address
from kubeproxy.facts.ids import Family, Protocol, ServicePortId
from kubeproxy.facts.node import NodeFacts
from kubeproxy.kernel.conntrack.entries import ENDED_STATES
from kubeproxy.plan.conntrack import PORT_BYTES
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.types import ServicePlan

NO_SLICE = "no EndpointSlice names it any more"
NOT_TRANSLATED = "it began before the Service was programmed, and is not translated"
NO_SERVICE = "no Service has this address and port"


class Flow(Struct, frozen=True, gc=False):
    """One connection. Ends are texts; `packets` and `bytes` are None where nothing counts them."""

    client: str
    frontend: str
    endpoint: str
    state: str
    packets: int | None = None
    bytes: int | None = None


def is_at(endpoint: str, address: str) -> bool:
    """Is this endpoint, as text with its port, at the address?"""
    return endpoint.rpartition(":")[0].strip("[]") == address


class EndpointFlows(Struct):
    """The flows of one service port to one endpoint. `stale` is the reason, or empty.

    `flows` are the first of them one by one, up to a limit.
    """

    family: Family
    owner: ServicePortId | None
    endpoint: str
    stale: str = ""
    count: int = 0
    states: dict[str, int] = {}
    packets: int | None = None
    bytes: int | None = None
    flows: list[Flow] = []

    def add(self, flow: Flow, *, keep: bool) -> None:
        self.count += 1
        self.states[flow.state] = self.states.get(flow.state, 0) + 1
        if flow.packets is not None:
            self.packets = (self.packets or 0) + flow.packets
        if flow.bytes is not None:
            self.bytes = (self.bytes or 0) + flow.bytes
        if keep:
            self.flows.append(flow)

    @property
    def sort_key(self) -> tuple[object, ...]:
        owner = astuple(self.owner) if self.owner else ("~",)
        return owner, self.family.value, self.endpoint


class Tally:
    """Collects flows: of these service ports `only`, or of all and of Services that are gone.

    `limit` is how many are kept one by one, over all.
    """

    def __init__(
        self,
        nodes: Mapping[Family, NodeFacts],
        *,
        limit: int = 0,
        only: Collection[tuple[Family, ServicePortId]] | None = None,
    ) -> None:
        self._only = only
        self._groups: dict[tuple[Family, ServicePortId | None, str], EndpointFlows] = {}
        self._nodes = nodes
        self._left = limit
        self.is_cut = False
        """Are there flows beyond the limit?"""

    def add(self, family: Family, plan: ServicePlan | None, flow: Flow) -> None:
        owner = plan.id if plan else None
        if self._only is not None and (family, owner) not in self._only:
            return
        group = self._groups.get((family, owner, flow.endpoint))
        if group is None:
            stale = why_stale(plan, flow)
            group = EndpointFlows(family, owner, flow.endpoint, stale)
            self._groups[family, owner, flow.endpoint] = group
        group.add(flow, keep=self._left > 0)
        self.is_cut = self.is_cut or self._left == 0
        self._left = max(self._left - 1, 0)

    def is_orphan(self, family: Family, destination: bytes, reply_source: bytes) -> bool:
        """Was this sent to an address of Services that no Service has, and translated?"""
        cidrs = self._nodes[family].service_cidrs
        return (
            self._only is None
            and destination != reply_source
            and contained_in_any(unpack_address(destination[:-PORT_BYTES]), cidrs)
        )

    def groups(self) -> list[EndpointFlows]:
        return sorted(self._groups.values(), key=lambda group: group.sort_key)


def why_stale(plan: ServicePlan | None, flow: Flow) -> str:
    """Why no new connection would go where this flow goes; empty if one would."""
    if plan is None:
        return NO_SERVICE
    if flow.endpoint in {endpoint.text for endpoint in plan.reachable}:
        return ""
    if flow.endpoint == flow.frontend:
        return NOT_TRANSLATED
    reasons = {excluded.what: excluded.reason for excluded in plan.excluded}
    return reasons.get(flow.endpoint, NO_SLICE)


def is_over(protocol: Protocol, state: str) -> bool:
    """Has this connection ended, and only its entry is left?"""
    return protocol is Protocol.TCP and state in ENDED_STATES


def end_text(end: bytes) -> str:
    """A packed address and port for people."""
    return join_host_port(
        unpack_address(end[:-PORT_BYTES]), int.from_bytes(end[-PORT_BYTES:], "big")
    )


def find_plan(
    frontends: Mapping[Family, Frontends], family: Family, protocol: Protocol, destination: bytes
) -> ServicePlan | None:
    found = frontends.get(family)
    return found.find(protocol, destination) if found else None
