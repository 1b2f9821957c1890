"""What we know about one Service, in one IP family."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.facts.ids import Protocol, ServiceName, ServicePortId
from kubeproxy.facts.policy import Policy

DEFAULT_AFFINITY_SECONDS = 10800
"""The API's default for a ClientIP affinity without a time-out."""


class PortFacts(Struct, frozen=True, gc=False, omit_defaults=True):
    """One element of `spec.ports`; `node_port` is 0 where there is none."""

    name: str
    protocol: Protocol
    port: int
    node_port: int = 0


class ServiceFacts(Struct, frozen=True, gc=False, omit_defaults=True):
    """A Service as one family sees it: addresses of this family only, in the order of the object.

    `affinity_seconds` is 0 without session affinity. `is_external_policy_local` already takes the
    Service type into account. `ignored` lists what the object holds that is not used, as sentences.
    `policy` is None unless an annotation asks for something. `cluster_ip` is empty for a Service of
    the short form, which has nothing but external IPs.
    """

    name: ServiceName
    cluster_ip: str
    ports: tuple[PortFacts, ...]
    external_ips: tuple[str, ...] = ()
    load_balancer_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    affinity_seconds: int = 0
    is_external_policy_local: bool = False
    is_internal_policy_local: bool = False
    health_check_node_port: int = 0
    ignored: tuple[str, ...] = ()
    policy: Policy | None = None

    def port_id(self, port: PortFacts) -> ServicePortId:
        return ServicePortId(self.name.namespace, self.name.name, port.name, port.protocol)
