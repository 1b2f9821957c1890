"""The decisions about one service port, as values that every mode renders as they are.

Values hold nothing but frozen values, so none can be part of a cycle: `gc=False` spares the
garbage collector from walking a cluster's worth of them again and again.
"""

from __future__ import annotations

from enum import Enum, StrEnum

from msgspec import Struct

from kubeproxy.facts.address import contained_in_any
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import ServicePortId
from kubeproxy.facts.policy import Algorithm, HealthCheck


class FrontendKind(StrEnum):
    """Where traffic arrives."""

    CLUSTER_IP = "ClusterIP"
    EXTERNAL_IP = "ExternalIP"
    LOAD_BALANCER = "LoadBalancer"
    NODE_PORT = "NodePort"

    @property
    def is_external(self) -> bool:
        """Governed by externalTrafficPolicy, not by internalTrafficPolicy."""
        return self is not FrontendKind.CLUSTER_IP


class Verdict(StrEnum):
    """The fate of a new connection that a frontend's policy governs."""

    FORWARD = "forward"
    REJECT = "reject"  # no endpoint anywhere serves this port: answer with ICMP, at once
    DROP = "drop"  # endpoints serve it, but none on this node, and the policy is Local


class PoolName(StrEnum):
    """The endpoints a frontend may use."""

    CLUSTER = "cluster"
    LOCAL = "local"


class Masquerade(Enum):
    """Whose source address is replaced by the node's."""

    NEVER = "never"
    ALWAYS = "always"
    NOT_LOCAL_PODS = "all but local pods"  # as the local traffic detector sees them
    NODE_ITSELF = "the node itself"  # external, policy Local: clients keep their address


class Guard(Struct, frozen=True, gc=False):
    """Who may connect, as the Service's annotations have it: who is allowed and not denied.

    `allow` is None where everyone is. The node itself may come with a source that is in no list:
    the frontend's address, where that is bound on the node, or a loopback address. These are
    treated like the node's address: as `node_allowed` or `node_denied`.
    """

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    node_allowed: tuple[str, ...] = ()
    node_denied: tuple[str, ...] = ()

    @property
    def allowed(self) -> tuple[str, ...] | None:
        """All networks that may connect, unless they are denied; None for everyone."""
        return None if self.allow is None else (*self.allow, *self.node_allowed)

    @property
    def denied(self) -> tuple[str, ...]:
        """All networks that may not connect, whatever is allowed."""
        return (*self.deny, *self.node_denied)

    def admits(self, source: str) -> bool:
        """May this client connect?"""
        if contained_in_any(source, self.denied):
            return False
        allowed = self.allowed
        return allowed is None or contained_in_any(source, allowed)


class Frontend(Struct, frozen=True, gc=False):
    """One place where traffic for a service port arrives.

    `address` is empty for a node port. With `has_short_circuit`, pods of this node and the node
    itself use the cluster pool although the policy is Local, whatever the `verdict` on others is.
    `source_ranges` restrict who may connect; `vip_sources` are the Service's own load balancer
    addresses, allowed as source because the node itself is within the ranges.
    """

    kind: FrontendKind
    address: str
    port: int
    verdict: Verdict
    pool: PoolName
    masquerade: Masquerade
    has_short_circuit: bool = False
    source_ranges: tuple[str, ...] = ()
    vip_sources: tuple[str, ...] = ()
    reason: str = ""

    @property
    def accepts_anyone(self) -> bool:
        """Is there any client whose traffic this frontend forwards?"""
        return self.verdict is Verdict.FORWARD or self.has_short_circuit


class Pool(Struct, frozen=True, gc=False):
    """Endpoints in canonical order, and the reason for this choice.

    `weights` are those of `endpoints`, in lowest terms and bounded; empty means that each counts
    once. `plan/balance` turns them into slots, for the modes that choose by number.
    """

    endpoints: tuple[Endpoint, ...] = ()
    reason: str = ""
    weights: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.endpoints)


class Excluded(Struct, frozen=True, gc=False):
    """An endpoint, or an address of the Service, that is not used, and why."""

    what: str
    reason: str
    is_refused: bool = False
    """By a rule of this node about addresses, and not for lack of use?"""
    is_here: bool = False
    """Is it a refused endpoint of this node, by its node name?"""


class ServicePlan(Struct, frozen=True, gc=False):
    """Everything decided about one service port in one IP family.

    `cluster` and `local` are the pools that frontends name; `reachable` is their union, in
    canonical order. `is_externally_accessible` holds even if external IPs are switched off,
    because upstream's rules show it. `serving`, for UDP and where the Service limits draining, are
    the endpoints to which an established flow may go on, whatever policy chose for new ones;
    `lingering` are those that exist while none serves. `drain_seconds` is how long a flow to
    another endpoint may go on: None for ever (TCP) or not at all (UDP), as upstream has it.
    `endpoint_count` counts all endpoints that are known, usable or not. `hairpin` are those on this
    node, usable or not: each of them may reach itself through a frontend. `algorithm` is None for
    the mode's default. `quiesced` would be in a pool but for their weight of 0: open connections go
    on. `guard` restricts who may connect to any frontend that has endpoints; None lets everyone.
    `health_check` is how endpoints of this port are checked.
    """

    id: ServicePortId
    cluster_ip: str
    port: int
    node_port: int
    cluster: Pool
    local: Pool
    reachable: tuple[Endpoint, ...]
    has_endpoints: bool
    frontends: tuple[Frontend, ...]
    affinity_seconds: int = 0
    algorithm: Algorithm | None = None
    health_check: HealthCheck | None = None
    drain_seconds: float | None = None
    is_internal_policy_local: bool = False
    is_external_policy_local: bool = False
    is_externally_accessible: bool = False
    uses_cluster_pool: bool = True
    uses_local_pool: bool = False
    health_check_node_port: int = 0
    serving: tuple[Endpoint, ...] = ()
    lingering: tuple[Endpoint, ...] = ()
    endpoint_count: int = 0
    hairpin: tuple[Endpoint, ...] = ()
    quiesced: tuple[Endpoint, ...] = ()
    guard: Guard | None = None
    excluded: tuple[Excluded, ...] = ()
    notes: tuple[str, ...] = ()

    def pool(self, name: PoolName) -> Pool:
        return self.cluster if name is PoolName.CLUSTER else self.local

    @property
    def has_internal(self) -> bool:
        """Is traffic from here to the cluster IP served?"""
        return self.has_endpoints and (not self.is_internal_policy_local or bool(self.local))

    @property
    def has_external(self) -> bool:
        """Is traffic from outside the cluster through this node served?"""
        return self.has_endpoints and (not self.is_external_policy_local or bool(self.local))

    def frontends_of(self, kind: FrontendKind) -> tuple[Frontend, ...]:
        return tuple(frontend for frontend in self.frontends if frontend.kind is kind)
