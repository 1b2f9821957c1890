"""Facts for the benchmarks of single modes: a node, and services of one port with endpoints.

Only what varies between benchmarks is a parameter. Everything else is as in a plain cluster: the
node recognises its pods by the cluster CIDR, and endpoints are on another node.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.facts.endpoint import Endpoint, PortKey, SliceFacts
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.node import DetectorKind, LocalDetector, NodeFacts
from kubeproxy.facts.service import PortFacts, ServiceFacts

NODE = "worker-a"
_OTHER_NODE = "worker-b"
_NODE_IPS = {Family.IPV4: "192.0.2.10", Family.IPV6: "2001:db8:10::10"}
_CLUSTER_CIDRS = {Family.IPV4: "10.244.0.0/16", Family.IPV6: "fd00:244::/56"}
_PORT = PortKey("http", Protocol.TCP)


def endpoint(address: str, port: int = 8080) -> Endpoint:
    """A ready endpoint on another node."""
    return Endpoint(address, port, node_name=_OTHER_NODE)


def port(number: int = 80) -> PortFacts:
    """The port every Service has here, which `endpoint_slice` serves."""
    return PortFacts(_PORT.name, _PORT.protocol, number)


def service(
    name: str, *, cluster_ip: str = "10.96.0.10", ports: Sequence[PortFacts] = ()
) -> ServiceFacts:
    """A Service from `namespace/name`. Without `ports` it has port 80."""
    namespace, _, short = name.partition("/")
    return ServiceFacts(ServiceName(namespace, short), cluster_ip, tuple(ports) or (port(),))


def endpoint_slice(
    name: str, endpoints: Sequence[Endpoint], *, slice_name: str = "slice-1"
) -> SliceFacts:
    """A slice with endpoints of the Service `namespace/name`."""
    namespace, _, short = name.partition("/")
    return SliceFacts(ServiceName(namespace, short), slice_name, ((_PORT, tuple(endpoints)),))


def node(
    family: Family = Family.IPV4,
    *,
    ip: str = "",
    addresses: Sequence[str] = (),
    large: bool = False,
) -> NodeFacts:
    """The node whose proxy is measured; `large` marks a cluster of very many endpoints."""
    own = ip or _NODE_IPS[family]
    return NodeFacts(
        name=NODE,
        family=family,
        ip=own,
        detector=LocalDetector(DetectorKind.CIDR, _CLUSTER_CIDRS[family]),
        node_port_cidrs=(family.zero_cidr,),
        addresses=tuple(addresses) or (own,),
        is_large_cluster=large,
    )
