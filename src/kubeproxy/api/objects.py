"""The part of each API object that the proxy reads, and nothing else.

msgspec skips every other field while decoding, so a 5 kB object costs what is declared here.
Field names are the API's. `null` is allowed wherever the API allows a missing field.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, field

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
HEADLESS_LABEL = "service.kubernetes.io/headless"
PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"
ZONE_LABEL = "topology.kubernetes.io/zone"
TRIGGER_TIME_ANNOTATION = "endpoints.kubernetes.io/last-change-trigger-time"
PREFIX = "kubeproxy/"
"""Of all annotations that are ours."""
ALGORITHM_ANNOTATION = "kubeproxy/algorithm"
HEALTH_CHECK_ANNOTATION = "kubeproxy/health-check"
DRAINING_ANNOTATION = "kubeproxy/draining"
ALLOW_SOURCES_ANNOTATION = "kubeproxy/allow-sources"
DENY_SOURCES_ANNOTATION = "kubeproxy/deny-sources"
WEIGHTS_ANNOTATION = "kubeproxy/weights"
LISTEN_TYPE = "kubeproxy/listen"
"""The type of Services of the short form: they have the addresses in `externalIPs` and no other.
No API server has it."""


class KnownKey(Struct, frozen=True, gc=False):
    """A label or annotation that is read: its name, the kind of object, what it does."""

    name: str
    kind: str
    what: str


LABELS = (
    KnownKey(SERVICE_NAME_LABEL, "EndpointSlice", "the Service that the endpoints serve; required"),
    KnownKey(HEADLESS_LABEL, "EndpointSlice", "if present, the slice is left alone"),
    KnownKey(PROXY_NAME_LABEL, "Service", "if present, the Service is left to another proxy"),
    KnownKey(ZONE_LABEL, "Node", "the zone of the node, compared with the zone hints of endpoints"),
)
ANNOTATIONS = (
    KnownKey(
        TRIGGER_TIME_ANNOTATION,
        "EndpointSlice",
        "when the change began; start of kubeproxy_network_programming_duration_seconds",
    ),
    KnownKey(
        ALGORITHM_ANNOTATION,
        "Service",
        "how the endpoint of a new connection is chosen: `random`, `round-robin`, `source-hash`,"
        " `consistent-hash` or `least-connections`; without it the mode's default",
    ),
    KnownKey(
        HEALTH_CHECK_ANNOTATION,
        "Service",
        "how this node checks each endpoint, and leaves out those that fail: `tcp`, `http /path`,"
        " `https /path`, `udp` or `none`, then words like `interval=10s` and `fall=3`; see"
        " [health checks](../guides/health-checks.md)",
    ),
    KnownKey(
        DRAINING_ANNOTATION,
        "Service",
        "what happens to open connections when an endpoint goes: `keep` (the default),"
        " `drain limit=30s` or `reset`; see [balancing](../guides/balancing.md#draining)",
    ),
    KnownKey(
        ALLOW_SOURCES_ANNOTATION,
        "Service",
        "who may connect to any frontend: networks or addresses of both families, separated by"
        " commas; a family of which none is there is closed",
    ),
    KnownKey(
        DENY_SOURCES_ANNOTATION,
        "Service",
        "who may not connect, even if allowed: networks or addresses, separated by commas",
    ),
    KnownKey(
        WEIGHTS_ANNOTATION,
        "EndpointSlice",
        "the share of each endpoint: `ADDRESS=WEIGHT` or `ZONE=WEIGHT`, separated by commas; 0 to"
        " 256, 1 where nothing is given, 0 takes no new connection; an address beats its zone",
    ),
)
"""Every label and annotation that is read, for the reference."""


class _Object(Struct, frozen=True, rename="camel", gc=False):
    """Frozen, with the API's camelCase names.

    `gc=False`: a tree that came from JSON has no cycles for the garbage collector to find.
    """


class ServiceLabels(_Object, frozen=True):
    proxy_name: str | UnsetType | None = field(default=UNSET, name=PROXY_NAME_LABEL)


class SliceLabels(_Object, frozen=True):
    service_name: str | None = field(default=None, name=SERVICE_NAME_LABEL)
    headless: str | UnsetType | None = field(default=UNSET, name=HEADLESS_LABEL)


class ServiceAnnotations(_Object, frozen=True):
    algorithm: str | None = field(default=None, name=ALGORITHM_ANNOTATION)
    health_check: str | None = field(default=None, name=HEALTH_CHECK_ANNOTATION)
    draining: str | None = field(default=None, name=DRAINING_ANNOTATION)
    allow_sources: str | None = field(default=None, name=ALLOW_SOURCES_ANNOTATION)
    deny_sources: str | None = field(default=None, name=DENY_SOURCES_ANNOTATION)


class SliceAnnotations(_Object, frozen=True):
    trigger_time: str | None = field(default=None, name=TRIGGER_TIME_ANNOTATION)
    weights: str | None = field(default=None, name=WEIGHTS_ANNOTATION)


class NodeLabels(_Object, frozen=True):
    zone: str | None = field(default=None, name=ZONE_LABEL)


class ObjectMeta(_Object, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class ServiceMeta(ObjectMeta, frozen=True):
    labels: ServiceLabels | None = None
    annotations: ServiceAnnotations | None = None


class SliceMeta(ObjectMeta, frozen=True):
    labels: SliceLabels | None = None
    annotations: SliceAnnotations | None = None


class NodeMeta(ObjectMeta, frozen=True):
    labels: NodeLabels | None = None


class ServicePort(_Object, frozen=True):
    port: int
    name: str | None = None
    protocol: str | None = None
    node_port: int | None = None


class ClientIPConfig(_Object, frozen=True):
    timeout_seconds: int | None = None


class SessionAffinityConfig(_Object, frozen=True):
    client_ip: ClientIPConfig | None = field(default=None, name="clientIP")


class ServiceSpec(_Object, frozen=True):
    type: str | None = None
    cluster_ip: str | None = field(default=None, name="clusterIP")
    cluster_ips: list[str] | None = field(default=None, name="clusterIPs")
    ip_families: list[str] | None = None
    ports: list[ServicePort] | None = None
    external_ips: list[str] | None = field(default=None, name="externalIPs")
    external_traffic_policy: str | None = None
    internal_traffic_policy: str | None = None
    session_affinity: str | None = None
    session_affinity_config: SessionAffinityConfig | None = None
    load_balancer_source_ranges: list[str] | None = None
    health_check_node_port: int | None = None


class LoadBalancerIngress(_Object, frozen=True):
    ip: str | None = None
    ip_mode: str | None = None
    hostname: str | None = None


class LoadBalancerStatus(_Object, frozen=True):
    ingress: list[LoadBalancerIngress] | None = None


class ServiceStatus(_Object, frozen=True):
    load_balancer: LoadBalancerStatus | None = None


class Service(_Object, frozen=True):
    metadata: ServiceMeta = ServiceMeta()
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus | None = None


class EndpointConditions(_Object, frozen=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(_Object, frozen=True):
    name: str = ""


class EndpointHints(_Object, frozen=True):
    for_zones: list[Hint] | None = None
    for_nodes: list[Hint] | None = None


class SliceEndpoint(_Object, frozen=True):
    addresses: list[str] | None = None
    conditions: EndpointConditions | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None


class SlicePort(_Object, frozen=True):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class EndpointSlice(_Object, frozen=True):
    metadata: SliceMeta = SliceMeta()
    address_type: str = ""
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None


class NodeAddress(_Object, frozen=True):
    type: str = ""
    address: str = ""


class Taint(_Object, frozen=True):
    key: str = ""


class NodeSpec(_Object, frozen=True):
    pod_cidrs: list[str] | None = field(default=None, name="podCIDRs")
    taints: list[Taint] | None = None


class NodeStatus(_Object, frozen=True):
    addresses: list[NodeAddress] | None = None


class Node(_Object, frozen=True):
    metadata: NodeMeta = NodeMeta()
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class ServiceCIDRSpec(_Object, frozen=True):
    cidrs: list[str] | None = None


class ServiceCIDR(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceCIDRSpec | None = None
