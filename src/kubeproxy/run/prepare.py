"""Between configuration and the first round: identify the node, check and prepare the host.

Decisions are in `startup`. This module reads the host, acts on the decisions and logs them. All of
it also happens with `--init-only`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from kubeproxy.api import objects
from kubeproxy.api.decode import decode_node_ips, decode_pod_cidrs, decode_zone
from kubeproxy.api.source import Source
from kubeproxy.config.command import Settings
from kubeproxy.config.flags import Extensions
from kubeproxy.errors import Busy, ConfigError, KernelError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import SERVICE_LINK, NodeFacts
from kubeproxy.kernel.conntrack_sysctls import (
    Parameter,
    conntrack_parameters,
    count_cpus,
    ensure_parameter,
)
from kubeproxy.kernel.route.table import default_route_sources, host_addresses
from kubeproxy.kernel.sysctl import find_sysctl
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import LogLimit
from kubeproxy.modes.base import AnyBackend, AnyMode
from kubeproxy.run import startup

logger = get_logger(__name__)

RETRY_SECONDS = 1.0


class Prepared(Struct, frozen=True):
    """What preparing has found: everything that serving needs."""

    node_name: str
    node: objects.Node | None
    identity: startup.NodeIdentity
    families: tuple[Family, ...]
    nodes: Mapping[Family, NodeFacts]
    backends: Mapping[Family, AnyBackend]
    extensions: Extensions
    """The flags of our own, with what was found on the host in place of what was left to it."""

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
    identity = _identify(await _node_ips(node, source), config.bind_address)
    addresses = startup.expand_node_port_addresses(config.node_port_addresses, identity)
    _prepare_conntrack(settings)
    for text in startup.configuration_warnings(config, addresses, pod_cidrs, identity.primary):
        logger.error(text, "Kube-proxy configuration may be incomplete or incorrect")
    extensions = await mode.resolve(settings.extensions)
    options = mode.options(config, extensions)
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
            limits=startup.limits_of(settings.extensions),
            mode=mode,
            zone=decode_zone(node) if node else "",
        )
        for family in families
    }
    if not nodes[identity.primary].detector.is_implemented:
        note = startup.missing_detector_note(config, pod_cidrs)
        logger.info(note.message, ipFamily=identity.primary.value, **note.values)
    backends = await _create_backends(mode, options, nodes)
    return Prepared(name, node, identity, families, nodes, backends, extensions)


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


async def _node_ips(node: objects.Node | None, source: Source) -> tuple[str, ...]:
    """The Node object's addresses; without a cluster, the host's own."""
    if node is not None or source.needs_node:
        return decode_node_ips(node) if node else ()
    while True:
        try:
            known = host_addresses(without_links={SERVICE_LINK})
        except Busy as error:  # Addresses come and go faster than they can be read.
            logger.error(error, "Cannot read the host's addresses; trying again")
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return startup.main_addresses(known, default_route_sources())


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
    """Set the parameters of connection tracking. A host without a cluster works without them."""
    wanted = startup.conntrack_settings(settings.config)
    failed: set[str] = set()
    for parameter in conntrack_parameters(wanted, count_cpus()):
        if parameter.leave_alone in failed:
            continue  # a larger hash table is of no use without a larger table
        if parameter.sysctl.endswith("nf_conntrack_max"):
            logger.info("Setting nf_conntrack_max", nfConntrackMax=parameter.value)
        try:
            ensure_parameter(parameter, partial(_log_writing, parameter))
        except KernelError as error:
            if not settings.extensions.text("manifests"):
                raise
            logger.error(error, "Going on without this conntrack parameter")
            failed.add(parameter.leave_alone)


def _log_writing(parameter: Parameter) -> None:
    if parameter.sysctl:
        logger.info("Set sysctl", entry=parameter.sysctl, value=parameter.value)
    else:
        logger.info("Setting conntrack hashsize", conntrackHashsize=parameter.value)


async def _supported_families(
    mode: AnyMode, options: object, primary: Family
) -> tuple[Family, ...]:
    problems = {family: await _family_problem(mode, options, family) for family in Family}
    reasons = {f: None if problem is None else problem.reason for f, problem in problems.items()}
    families = startup.choose_families(reasons, primary)
    for family, problem in problems.items():
        if problem is not None:
            logger.info(problem.message, ipFamily=family.value, **problem.values)
    if len(families) == 2:
        key = {"primary ipFamily": primary.value}
        logger.info("kube-proxy running in dual-stack mode", **key)
    else:
        logger.info("kube-proxy running in single-stack mode", ipFamily=primary.value)
    return families


class _Unavailable(Struct, frozen=True):
    """Why a family cannot run here: for an error, and for the log."""

    reason: str
    message: str
    values: Mapping[str, object] = {}


async def _family_problem(mode: AnyMode, options: object, family: Family) -> _Unavailable | None:
    if family is Family.IPV6:
        if not Path("/proc/net/if_inet6").exists():
            return _Unavailable("no kernel support for IPv6", "No kernel support for family")
        if find_sysctl("net/ipv6/conf/all/disable_ipv6") == "1":
            reason = "IPv6 is disabled (net.ipv6.conf.all.disable_ipv6)"
            return _Unavailable(reason, "Kernel support disabled for family")
    try:
        await _check(mode, options, family)
    except Unsupported as error:
        return _Unavailable(str(error), f"No {mode.name} support for family", {"error": str(error)})
    return None


async def _check(mode: AnyMode, options: object, family: Family) -> None:
    """Raise Unsupported unless the mode works here, however long it takes to find out.

    A lock that another program holds, or no room to run a tool, says nothing about the host. Taken
    for an answer it would end the process, or leave a family out until the next start.
    """
    limit = LogLimit()
    while True:
        try:
            return await mode.check((family,), options)
        except Busy as error:
            if limit.is_due():
                message = "Cannot find out what this host supports; trying again"
                logger.error(error, message, ipFamily=family.value)
            await asyncio.sleep(RETRY_SECONDS)


def _check_families(
    settings: Settings, pod_cidrs: tuple[str, ...], families: tuple[Family, ...], primary: Family
) -> None:
    for problem in startup.family_problems(settings.config, pod_cidrs, families, primary):
        if problem.is_fatal:
            raise ConfigError(f"kube-proxy configuration is incorrect: {problem.text}")
        logger.error(problem.text, "Kube-proxy configuration may be incomplete or incorrect")
