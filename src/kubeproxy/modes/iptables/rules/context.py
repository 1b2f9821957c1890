"""What every rule of one service port needs at hand. Pure."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.options import Options
from kubeproxy.plan.types import Frontend, ServicePlan


class PortContext(Struct, frozen=True, gc=False):
    """A service port's plan, its names, and what node and options contribute."""

    plan: ServicePlan
    node: NodeFacts
    options: Options
    label: str
    protocol: str
    """`-m tcp -p tcp`, in upstream's order."""
    chains: names.ServiceChains
    has_firewall: bool

    @property
    def load_balancer_chain(self) -> str:
        return self.chains.firewall if self.has_firewall else self.chains.external

    def guarded(self, chain: str) -> str:
        """Where dispatch goes for this chain: to the lists of sources before it, if there are."""
        if self.plan.guard is None:
            return chain
        return self.guard_targets[chain]

    @property
    def guard_targets(self) -> dict[str, str]:
        """By chain that dispatch leads to: the one with the lists of sources before it."""
        guards = names.guard_chains(self.chains.common)
        plan = self.plan
        found = {self.internal_chain: guards.internal} if plan.has_internal else {}
        if plan.is_externally_accessible:
            found[self.chains.external] = guards.external
        if self.has_firewall:
            found[self.chains.firewall] = guards.firewall
        return found

    @property
    def internal_chain(self) -> str:
        is_local = self.plan.is_internal_policy_local
        return self.chains.local if is_local else self.chains.cluster

    def destination(self, frontend: Frontend) -> str:
        """The match for packets to a frontend that has an address."""
        return f"{self.protocol} -d {frontend.address} --dport {frontend.port}"


def context_of(plan: ServicePlan, node: NodeFacts, options: Options) -> PortContext:
    protocol = plan.id.protocol.lower_name
    return PortContext(
        plan=plan,
        node=node,
        options=options,
        label=plan.id.label,
        protocol=f"-m {protocol} -p {protocol}",
        chains=names.service_chains(plan.id),
        has_firewall=plan.has_endpoints and any(f.source_ranges for f in plan.frontends),
    )
