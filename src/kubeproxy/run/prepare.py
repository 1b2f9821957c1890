"""Between configuration and the first round: identify the node, check and prepare the host.

Decisions are in `startup`. This module reads the host, acts on the decisions and logs them. All of
it also happens with `--init-only`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from kubeproxy.api import objects
from kubeproxy.api.decode import decode_node_ips, decode_pod_cidrs
from kubeproxy.api.source import Source
from kubeproxy.config.command import Settings
from kubeproxy.errors import ConfigError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import SERVICE_LINK, NodeFacts
from kubeproxy.kernel.conntrack_sysctls import (
    conntrack_parameters,
    count_cpus,
    set_conntrack_parameters,
)
from kubeproxy.kernel.route.table import host_addresses
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import AnyBackend, AnyMode
from kubeproxy.run import startup

logger = get_logger(__name__)


class Prepared(Struct, frozen=True):
    """What preparing has found: everything that serving needs."""

    node_name: str
    node: objects.Node | None
    families: tuple[Family, ...]
    nodes: Mapping[Family, NodeFacts]
    backends: Mapping[Family, AnyBackend]

    @property
    def node_ips(self) -> tuple[str, ...]:
        return decode_node_ips(self.node) if self.node else ()

    @property
    def pod_cidrs(self) -> tuple[str, ...]:
        return decode_pod_cidrs(self.node) if self.node else ()


async def prepare(settings: Settings, mode: AnyMode, source: Source) -> Prepared:
    """Identify the node, choose families, and make the host ready. Raises ProxyError."""
    config = settings.config
    name = startup.node_name(settings.hostname_override, socket.gethostname())
    uses_pod_cidrs = config.detect_local_mode == "NodeCIDR"
    node = await source.find_node(name, needs_pod_cidrs=uses_pod_cidrs)
    pod_cidrs = decode_pod_cidrs(node) if node else ()
    identity = _identify(_node_ips(node, source), config.bind_address)
    addresses = startup.expand_node_port_addresses(config.node_port_addresses, identity)
    _prepare_conntrack(settings)
    for text in startup.configuration_warnings(config, addresses, pod_cidrs, identity.primary):
        logger.error(text, "Kube-proxy configuration may be incomplete or incorrect")
    options = mode.options(config, settings.extensions)
    families = await _supported_families(mode, options, identity.primary)
    _check_families(settings, pod_cidrs, families, identity.primary)
    nodes = {
        family: startup.node_facts(
            name,
            family,
            config=config,
            identity=identity,
            pod_cidrs=pod_cidrs,
            node_port_addresses=addresses,
            allows_external_ips=settings.gates.enabled("AllowServiceExternalIPs"),
        )
        for family in families
    }
    if not nodes[identity.primary].detector.is_implemented:
        logger.info(startup.missing_detector_note(config), ipFamily=identity.primary.value)
    return Prepared(name, node, families, nodes, await _create_backends(mode, options, nodes))


async def _create_backends(
    mode: AnyMode, options: object, nodes: Mapping[Family, NodeFacts]
) -> Mapping[Family, AnyBackend]:
    logger.info(f"Using {mode.name} Proxier")
    backends = {family: mode.create(family, options) for family in nodes}
    for family, backend in backends.items():
        try:
            await backend.start(nodes[family])
        except Unsupported as error:
            prefix = "unable to create proxier: "
            if len(nodes) > 1:
                prefix += f"unable to create {family.value.lower()} proxier: "
            raise Unsupported(f"{prefix}{error}") from error
    return backends


def _node_ips(node: objects.Node | None, source: Source) -> tuple[str, ...]:
    """The Node object's addresses; without a cluster, the host's own."""
    if node is None and not source.needs_node:
        return startup.main_addresses(host_addresses(without_links={SERVICE_LINK}))
    return decode_node_ips(node) if node else ()


def _identify(node_ips: tuple[str, ...], bind_address: str) -> startup.NodeIdentity:
    if node_ips:
        logger.info("Successfully retrieved NodeIPs", NodeIPs=list(node_ips))
    identity = startup.identify_node(node_ips, bind_address)
    if identity.is_assumed:
        logger.info(
            "Can't determine this node's IP, assuming loopback; if this is incorrect, please set"
            " the --bind-address flag"
        )
    return identity


def _prepare_conntrack(settings: Settings) -> None:
    wanted = startup.conntrack_settings(settings.config)
    for parameter in set_conntrack_parameters(conntrack_parameters(wanted, count_cpus())):
        logger.info("Set sysctl", entry=parameter.path, value=parameter.value)


async def _supported_families(
    mode: AnyMode, options: object, primary: Family
) -> tuple[Family, ...]:
    problems = {family: await _family_problem(mode, options, family) for family in Family}
    families = startup.choose_families(problems, primary)
    for family, problem in problems.items():
        if problem is not None:
            logger.info("No support for family", ipFamily=family.value, reason=problem)
    stack = "dual-stack" if len(families) == 2 else "single-stack"
    logger.info(f"kube-proxy running in {stack} mode", **{"primary ipFamily": primary.value})
    return families


async def _family_problem(mode: AnyMode, options: object, family: Family) -> str | None:
    if family is Family.IPV6:
        if not Path("/proc/net/if_inet6").exists():
            return "no kernel support for IPv6"
        switch = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
        if switch.exists() and switch.read_text().strip() == "1":
            return "IPv6 is disabled (net.ipv6.conf.all.disable_ipv6)"
    try:
        await mode.check((family,), options)
    except Unsupported as error:
        return str(error)
    return None


def _check_families(
    settings: Settings, pod_cidrs: tuple[str, ...], families: tuple[Family, ...], primary: Family
) -> None:
    for problem in startup.family_problems(settings.config, pod_cidrs, families, primary):
        if problem.is_fatal:
            raise ConfigError(f"kube-proxy configuration is incorrect: {problem.text}")
        logger.error(problem.text, "Kube-proxy configuration may be incomplete or incorrect")
