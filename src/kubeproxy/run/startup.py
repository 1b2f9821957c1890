"""What is decided once, between reading the configuration and the first round. Pure.

Node name and addresses, which families run, who counts as a local pod, on which addresses node
ports are served, and what is odd about all this. Reading the host and acting on the answers is
left to `prepare`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address

from msgspec import Struct

from kubeproxy.config.flags import Extensions
from kubeproxy.config.kinds import port_range
from kubeproxy.config.types import KubeProxyConfiguration
from kubeproxy.errors import ConfigError, Unsupported
from kubeproxy.facts.address import canonical_cidrs, family_of, is_loopback, parse_ip
from kubeproxy.facts.ids import Family
from kubeproxy.facts.limits import NO_LIMITS, Limits
from kubeproxy.facts.node import DetectorKind, LocalDetector, NodeFacts, node_port_cidrs_of
from kubeproxy.go.hostport import split_host_port
from kubeproxy.kernel.conntrack_sysctls import ConntrackSettings
from kubeproxy.modes.base import AnyMode

PRIMARY = "primary"
_WILDCARDS = frozenset(family.wildcard for family in Family)


class NodeIdentity(Struct, frozen=True):
    """This node's addresses (loopback where unknown) and the family that must work."""

    ips: Mapping[Family, str]
    primary: Family

    @property
    def is_assumed(self) -> bool:
        return is_loopback(self.ips[self.primary])


def node_name(override: str, hostname: str) -> str:
    """The name under which the node is registered."""
    name = (override or hostname).strip().lower()
    if not name:
        raise ConfigError("empty hostname is invalid")
    return name


def identify_node(node_ips: Sequence[str], bind_address: str) -> NodeIdentity:
    """Addresses of the Node object, overridden by a specific bind address."""
    ips = {family: family.loopback for family in Family}
    primary = Family.IPV4
    if node_ips:
        primary = family_of(node_ips[0])
        ips |= {family_of(address): address for address in node_ips}
    parsed = parse_ip(bind_address)
    if parsed is not None and parsed[1] not in _WILDCARDS:
        primary = parsed[0]
        ips[primary] = parsed[1]
    return NodeIdentity(ips, primary)


def main_addresses(
    addresses: Mapping[Family, Sequence[str]], preferred: Mapping[Family, str] | None = None
) -> tuple[str, ...]:
    """The address of each family by which others can reach this host: the preferred, or a first."""
    found = []
    for family in Family:
        usable = [
            a for a in addresses[family] if not ip_address(a).is_link_local and not is_loopback(a)
        ]
        wanted = (preferred or {}).get(family)
        if usable:
            found.append(wanted if wanted in usable else usable[0])
    return tuple(found)


def expand_node_port_addresses(
    configured: Sequence[str] | None, identity: NodeIdentity
) -> tuple[str, ...]:
    """Canonical networks; `primary` becomes the node's own addresses as far as they are known."""
    if not configured:
        return ()
    if list(configured) == [PRIMARY]:
        return tuple(
            f"{identity.ips[family]}/{family.bits}"
            for family in Family
            if not is_loopback(identity.ips[family])
        )
    return canonical_cidrs(configured)


def local_detector(
    config: KubeProxyConfiguration, pod_cidrs: Sequence[str], family: Family
) -> LocalDetector:
    """How this family recognises a packet that comes from a pod."""
    mode = config.detect_local_mode
    if mode == "BridgeInterface":
        return LocalDetector(DetectorKind.BRIDGE, config.detect_local.bridge_interface)
    if mode == "InterfaceNamePrefix":
        prefix = config.detect_local.interface_name_prefix
        return LocalDetector(DetectorKind.INTERFACE_PREFIX, prefix)
    cidrs = pod_cidrs if mode == "NodeCIDR" else config.cluster_cidrs
    own = (cidr for cidr in canonical_cidrs(cidrs) if family_of(cidr) is family)
    cidr = next(own, None)
    return LocalDetector(DetectorKind.CIDR, cidr) if cidr else LocalDetector()


class Note(Struct, frozen=True):
    """A message for the log and its values."""

    message: str
    values: Mapping[str, object]


def missing_detector_note(config: KubeProxyConfiguration, pod_cidrs: Sequence[str]) -> Note:
    """The log message for a primary family that cannot recognise local pods."""
    # Upstream's lists are null when they are empty.
    if config.detect_local_mode == "NodeCIDR":
        return Note(
            "Detect-local-mode set to NodeCIDR, but no PodCIDR defined at node for primary IP"
            " family",
            {"podCIDRs": list(pod_cidrs) or None},
        )
    return Note(
        "Detect-local-mode set to ClusterCIDR, but no cluster CIDR specified for primary IP family",
        {"clusterCIDRs": list(config.cluster_cidrs) or None},
    )


def choose_families(problems: Mapping[Family, str | None], primary: Family) -> tuple[Family, ...]:
    """Both families if both work here, else the primary one alone; what it cannot do is fatal."""
    if problems[primary] is not None:
        reason = problems[primary]
        if all(problem is not None for problem in problems.values()):
            raise Unsupported(str(reason))
        raise Unsupported(f'no support for primary IP family "{primary.value}": {reason}')
    return tuple(family for family in Family if problems[family] is None or family is primary)


def node_facts(
    name: str,
    family: Family,
    *,
    config: KubeProxyConfiguration,
    identity: NodeIdentity,
    pod_cidrs: Sequence[str],
    node_port_addresses: tuple[str, ...],
    allows_external_ips: bool,
    mode: AnyMode,
    limits: Limits = NO_LIMITS,
    zone: str = "",
) -> NodeFacts:
    """One family's view of the node, before the first event."""
    return NodeFacts(
        name=name,
        family=family,
        ip=identity.ips[family],
        detector=local_detector(config, pod_cidrs, family),
        node_port_cidrs=node_port_cidrs_of(family, node_port_addresses),
        masquerade_all=config.masquerade_all,
        allows_external_ips=allows_external_ips,
        limits=limits,
        own_ports=own_ports(config),
        mode=mode.name,
        algorithms=mode.algorithms,
        zone=zone,
    )


def own_ports(config: KubeProxyConfiguration) -> tuple[int, ...]:
    """The ports of the servers that the proxy runs itself."""
    addresses = filter(None, (config.healthz_bind_address, config.metrics_bind_address))
    return tuple(number for a in addresses if (number := int(split_host_port(a)[1])))


def limits_of(extensions: Extensions) -> Limits:
    """What the flags allow as targets and as addresses of Services."""
    return Limits(
        endpoint_cidrs=canonical_cidrs(extensions.items("endpoint-cidrs")),
        external_ip_cidrs=canonical_cidrs(extensions.items("external-ip-cidrs")),
        load_balancer_cidrs=canonical_cidrs(extensions.items("load-balancer-cidrs")),
        refused_node_ports=tuple(map(port_range, extensions.items("refused-node-ports"))),
    )


def conntrack_settings(config: KubeProxyConfiguration) -> ConntrackSettings:
    section = config.conntrack
    return ConntrackSettings(
        max_per_core=section.max_per_core,
        min=section.min,
        tcp_established_seconds=section.tcp_established_timeout.seconds,
        tcp_close_wait_seconds=section.tcp_close_wait_timeout.seconds,
        tcp_be_liberal=section.tcp_be_liberal,
        udp_seconds=section.udp_timeout.seconds,
        udp_stream_seconds=section.udp_stream_timeout.seconds,
    )


def configuration_warnings(
    config: KubeProxyConfiguration,
    node_port_addresses: Sequence[str],
    pod_cidrs: Sequence[str],
    primary: Family,
) -> Iterator[str]:
    """Warnings about node port addresses; the process goes on."""
    if not node_port_addresses:
        yield (
            "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs."
            " Consider using `--nodeport-addresses primary`"
        )
        return
    families = {family_of(cidr) for cidr in node_port_addresses}
    configured = (
        canonical_cidrs(config.cluster_cidrs),
        tuple(node_port_addresses),
        canonical_cidrs(config.ipvs.exclude_cidrs or ()),
        canonical_cidrs(pod_cidrs),
    )
    is_dual_stack = any(len({family_of(cidr) for cidr in cidrs}) == 2 for cidrs in configured)
    if primary not in families:
        yield (
            f"cluster appears to be {primary.value}-primary but nodePortAddresses contains only"
            f" {primary.other.value} addresses; NodePort connections will be accepted on all local"
            f" {primary.value} IPs"
        )
    elif is_dual_stack and len(families) == 1:
        yield (
            f"cluster appears to be dual-stack but nodePortAddresses contains only {primary.value}"
            " addresses; NodePort connections will be accepted on all local"
            f" {primary.other.value} IPs"
        )


class FamilyProblem(Struct, frozen=True):
    """A setting whose addresses are all of the wrong family."""

    text: str
    is_fatal: bool


def family_problems(
    config: KubeProxyConfiguration,
    pod_cidrs: Sequence[str],
    families: Sequence[Family],
    primary: Family,
) -> Iterator[FamilyProblem]:
    """Settings that cannot work with the families that run."""
    is_dual = len(families) == 2
    cluster = f"{primary.value}-primary" if is_dual else f"{primary.value}-only"

    def problem(setting: str, values: Iterable[str], *, is_fatal: bool) -> Iterator[FamilyProblem]:
        found = {family_of(value) for value in values}
        if found == {primary.other}:
            text = (
                f"cluster is {cluster} but {setting} contains only {primary.other.value} addresses"
            )
            yield FamilyProblem(text, is_fatal)

    uses_cluster_cidr = config.detect_local_mode == "ClusterCIDR"
    yield from problem(
        "clusterCIDRs",
        canonical_cidrs(config.cluster_cidrs),
        is_fatal=uses_cluster_cidr and not is_dual,
    )
    yield from problem(
        "node.spec.podCIDRs",
        canonical_cidrs(pod_cidrs),
        is_fatal=config.detect_local_mode == "NodeCIDR",
    )
    if is_dual:
        return
    yield from problem(
        "ipvs.excludeCIDRs", canonical_cidrs(config.ipvs.exclude_cidrs or ()), is_fatal=False
    )
    for setting, address in (
        ("healthzBindAddress", config.healthz_bind_address),
        ("metricsBindAddress", config.metrics_bind_address),
    ):
        if _specific_family(address) is primary.other:
            text = f"cluster is {cluster} but {setting} is {primary.other.value}"
            yield FamilyProblem(text, is_fatal=False)


def _specific_family(address: str) -> Family | None:
    """Return the family of the host in `ip:port`, or None for a wildcard or a disabled server."""
    parsed = parse_ip(split_host_port(address)[0]) if address else None
    return None if parsed is None or parsed[1] in _WILDCARDS else parsed[0]
