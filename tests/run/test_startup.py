"""Start-up decisions, row by row: who we are, which families run, what is odd and what is fatal."""

from __future__ import annotations

import pytest

from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.config.types import KubeProxyConfiguration
from kubeproxy.errors import ConfigError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import DetectorKind, LocalDetector
from kubeproxy.modes.iptables.options import options_of as iptables_options_of
from kubeproxy.modes.ipvs.options import options_of as ipvs_options_of
from kubeproxy.modes.registry import load_mode
from kubeproxy.run.startup import (
    FamilyProblem,
    NodeIdentity,
    choose_families,
    configuration_warnings,
    conntrack_settings,
    expand_node_port_addresses,
    family_problems,
    identify_node,
    local_detector,
    main_addresses,
    missing_detector_note,
    node_facts,
    node_name,
)

V4, V6 = Family.IPV4, Family.IPV6
BOTH = (V4, V6)
LOOPBACK = {V4: "127.0.0.1", V6: "::1"}


def settings(*flags: str) -> Settings:
    parsed = parse_command_line(flags)
    assert isinstance(parsed, Settings), parsed
    return parsed


def config(*flags: str) -> KubeProxyConfiguration:
    return settings(*flags).config


# --- identity ---


@pytest.mark.parametrize(
    ("override", "hostname", "expected"),
    [
        ("", "Worker-A", "worker-a"),
        ("", " worker-a\n", "worker-a"),
        ("Other.Example.COM ", "worker-a", "other.example.com"),
    ],
)
def test_the_node_name_is_trimmed_and_lower_case(
    override: str, hostname: str, expected: str
) -> None:
    assert node_name(override, hostname) == expected


def test_an_empty_node_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty hostname is invalid"):
        node_name("", "  ")


@pytest.mark.parametrize(
    ("node_ips", "bind_address", "primary", "ips"),
    [
        ((), "0.0.0.0", V4, LOOPBACK),
        ((), "::", V4, LOOPBACK),
        (("192.0.2.1",), "0.0.0.0", V4, {V4: "192.0.2.1", V6: "::1"}),
        (("2001:db8::1",), "0.0.0.0", V6, {V4: "127.0.0.1", V6: "2001:db8::1"}),
        (("192.0.2.1", "2001:db8::1"), "0.0.0.0", V4, {V4: "192.0.2.1", V6: "2001:db8::1"}),
        (("2001:db8::1", "192.0.2.1"), "0.0.0.0", V6, {V4: "192.0.2.1", V6: "2001:db8::1"}),
        ((), "192.0.2.9", V4, {V4: "192.0.2.9", V6: "::1"}),
        ((), "2001:db8::9", V6, {V4: "127.0.0.1", V6: "2001:db8::9"}),
        (("192.0.2.1",), "2001:DB8::9", V6, {V4: "192.0.2.1", V6: "2001:db8::9"}),
        (("2001:db8::1",), "192.0.2.9", V4, {V4: "192.0.2.9", V6: "2001:db8::1"}),
        (("192.0.2.1",), "192.0.2.9", V4, {V4: "192.0.2.9", V6: "::1"}),
    ],
)
def test_node_addresses_and_a_specific_bind_address(
    node_ips: tuple[str, ...], bind_address: str, primary: Family, ips: dict[Family, str]
) -> None:
    identity = identify_node(node_ips, bind_address)
    assert (identity.primary, identity.ips) == (primary, ips)
    assert identity.is_assumed is (ips[primary] in LOOPBACK.values())


def test_the_main_addresses_of_a_host_are_those_others_can_use() -> None:
    found = {V4: ["127.0.0.1", "169.254.1.1", "192.0.2.1", "192.0.2.2"], V6: ["::1", "fe80::1"]}
    assert main_addresses(found) == ("192.0.2.1",)


def test_a_preferred_main_address_wins_if_others_can_use_it() -> None:
    found = {Family.IPV4: ("10.0.0.1", "192.0.2.1"), Family.IPV6: ("fd00::1",)}
    assert main_addresses(found, {Family.IPV4: "192.0.2.1"}) == ("192.0.2.1", "fd00::1")
    assert main_addresses(found, {Family.IPV4: "203.0.113.9"}) == ("10.0.0.1", "fd00::1")
    assert main_addresses(found, {Family.IPV4: "127.0.0.1"}) == ("10.0.0.1", "fd00::1")


# --- node port addresses ---


@pytest.mark.parametrize(
    ("configured", "ips", "expected"),
    [
        (None, LOOPBACK, ()),
        ([], LOOPBACK, ()),
        (["primary"], LOOPBACK, ()),
        (["primary"], {V4: "192.0.2.1", V6: "::1"}, ("192.0.2.1/32",)),
        (["primary"], {V4: "127.0.0.1", V6: "2001:db8::1"}, ("2001:db8::1/128",)),
        (
            ["primary"],
            {V4: "192.0.2.1", V6: "2001:db8::1"},
            ("192.0.2.1/32", "2001:db8::1/128"),
        ),
        (["192.0.2.77/24", "0.0.0.0/0"], LOOPBACK, ("192.0.2.0/24", "0.0.0.0/0")),
    ],
)
def test_node_port_addresses_are_expanded(
    configured: list[str] | None, ips: dict[Family, str], expected: tuple[str, ...]
) -> None:
    assert expand_node_port_addresses(configured, NodeIdentity(ips, V4)) == expected


# --- who is a local pod ---

NONE = LocalDetector()


def cidr(text: str) -> LocalDetector:
    return LocalDetector(DetectorKind.CIDR, text)


@pytest.mark.parametrize(
    ("flags", "pod_cidrs", "ipv4", "ipv6"),
    [
        ([], (), NONE, NONE),
        (["--cluster-cidr=10.244.1.5/16"], (), cidr("10.244.0.0/16"), NONE),
        (["--cluster-cidr=fd00::/56"], (), NONE, cidr("fd00::/56")),
        (
            ["--cluster-cidr=10.244.0.0/16,fd00::/56"],
            ("10.1.0.0/24",),
            cidr("10.244.0.0/16"),
            cidr("fd00::/56"),
        ),
        (["--detect-local-mode=NodeCIDR"], (), NONE, NONE),
        (
            ["--detect-local-mode=NodeCIDR", "--cluster-cidr=10.244.0.0/16"],
            ("10.1.0.0/24", "10.2.0.0/24", "fd00:1::/64"),
            cidr("10.1.0.0/24"),
            cidr("fd00:1::/64"),
        ),
        (
            ["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"],
            (),
            LocalDetector(DetectorKind.BRIDGE, "cni0"),
            LocalDetector(DetectorKind.BRIDGE, "cni0"),
        ),
        (
            ["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"],
            (),
            LocalDetector(DetectorKind.INTERFACE_PREFIX, "veth"),
            LocalDetector(DetectorKind.INTERFACE_PREFIX, "veth"),
        ),
    ],
)
def test_the_four_ways_to_tell_a_local_pod(
    flags: list[str], pod_cidrs: tuple[str, ...], ipv4: LocalDetector, ipv6: LocalDetector
) -> None:
    found = config(*flags)
    assert local_detector(found, pod_cidrs, V4) == ipv4
    assert local_detector(found, pod_cidrs, V6) == ipv6


def test_what_is_missing_to_tell_local_pods_depends_on_the_mode() -> None:
    note = missing_detector_note(config("--cluster-cidr=fd00::/48"), ())
    assert note.message == (
        "Detect-local-mode set to ClusterCIDR, but no cluster CIDR specified for primary IP family"
    )
    assert note.values == {"clusterCIDRs": ["fd00::/48"]}
    note = missing_detector_note(config("--detect-local-mode=NodeCIDR"), ())
    assert note.message == (
        "Detect-local-mode set to NodeCIDR, but no PodCIDR defined at node for primary IP family"
    )
    assert note.values == {"podCIDRs": None}


# --- families ---


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "primary", "expected"),
    [
        (None, None, V4, BOTH),
        (None, None, V6, BOTH),
        (None, "off", V4, (V4,)),
        ("off", None, V6, (V6,)),
    ],
)
def test_both_families_run_if_both_work(
    ipv4: str | None, ipv6: str | None, primary: Family, expected: tuple[Family, ...]
) -> None:
    assert choose_families({V4: ipv4, V6: ipv6}, primary) == expected


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "primary", "message"),
    [
        (None, "off", V6, 'no support for primary IP family "IPv6": off'),
        ("broken", None, V4, 'no support for primary IP family "IPv4": broken'),
        ("no tool", "off", V4, "no tool"),
        ("no tool", "off", V6, "off"),
    ],
)
def test_the_primary_family_must_work(
    ipv4: str | None, ipv6: str | None, primary: Family, message: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        choose_families({V4: ipv4, V6: ipv6}, primary)
    assert str(caught.value) == message


# --- warnings ---

UNSET = "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs."
DUAL_CIDRS = "--cluster-cidr=10.244.0.0/16,fd00::/56"
EXCLUDED = "--ipvs-exclude-cidrs=192.0.2.0/24,2001:db8::/64"


@pytest.mark.parametrize(
    ("flags", "addresses", "pod_cidrs", "primary", "expected"),
    [
        ([], (), (), V4, UNSET),
        ([DUAL_CIDRS], (), (), V6, UNSET),
        ([], ("192.0.2.0/24",), (), V4, ""),
        ([], ("192.0.2.0/24", "2001:db8::/64"), (), V4, ""),
        ([DUAL_CIDRS], ("192.0.2.0/24", "2001:db8::/64"), (), V4, ""),
        (
            [DUAL_CIDRS],
            ("192.0.2.0/24",),
            (),
            V4,
            "cluster appears to be dual-stack but nodePortAddresses contains only IPv4 addresses;"
            " NodePort connections will be accepted on all local IPv6 IPs",
        ),
        (
            [],
            ("2001:db8::/64",),
            ("10.1.0.0/24", "fd00:1::/64"),
            V6,
            "cluster appears to be dual-stack but nodePortAddresses contains only IPv6 addresses;"
            " NodePort connections will be accepted on all local IPv4 IPs",
        ),
        (
            [EXCLUDED],
            ("192.0.2.0/24",),
            (),
            V4,
            "cluster appears to be dual-stack but nodePortAddresses contains only IPv4 addresses;",
        ),
        (
            [],
            ("192.0.2.0/24",),
            (),
            V6,
            "cluster appears to be IPv6-primary but nodePortAddresses contains only IPv4"
            " addresses; NodePort connections will be accepted on all local IPv6 IPs",
        ),
        (
            [DUAL_CIDRS],
            ("2001:db8::/64",),
            (),
            V4,
            "cluster appears to be IPv4-primary but nodePortAddresses contains only IPv6",
        ),
    ],
)
def test_odd_node_port_addresses_cause_a_warning(
    flags: list[str],
    addresses: tuple[str, ...],
    pod_cidrs: tuple[str, ...],
    primary: Family,
    expected: str,
) -> None:
    found = list(configuration_warnings(config(*flags), addresses, pod_cidrs, primary))
    assert len(found) == bool(expected)
    assert all(text.startswith(expected) for text in found)


# --- settings of the wrong family ---

ONLY = "contains only IPv6 addresses"
V6_CLUSTER = "--cluster-cidr=fd00::/56"
NODE_CIDR = "--detect-local-mode=NodeCIDR"


@pytest.mark.parametrize(
    ("flags", "pod_cidrs", "families", "expected"),
    [
        ([], (), BOTH, None),
        (["--cluster-cidr=10.244.0.0/16"], (), (V4,), None),
        ([DUAL_CIDRS], (), (V4,), None),
        ([V6_CLUSTER], (), (V4,), (f"IPv4-only but clusterCIDRs {ONLY}", True)),
        ([V6_CLUSTER], (), BOTH, (f"IPv4-primary but clusterCIDRs {ONLY}", False)),
        ([V6_CLUSTER, NODE_CIDR], (), (V4,), (f"IPv4-only but clusterCIDRs {ONLY}", False)),
        ([NODE_CIDR], ("fd00:1::/64",), (V4,), (f"IPv4-only but node.spec.podCIDRs {ONLY}", True)),
        (
            [NODE_CIDR],
            ("fd00:1::/64",),
            BOTH,
            (f"IPv4-primary but node.spec.podCIDRs {ONLY}", True),
        ),
        ([], ("fd00:1::/64",), (V4,), (f"IPv4-only but node.spec.podCIDRs {ONLY}", False)),
        (["--ipvs-exclude-cidrs=fd00::/64"], (), BOTH, None),
        (
            ["--ipvs-exclude-cidrs=fd00::/64"],
            (),
            (V4,),
            (f"IPv4-only but ipvs.excludeCIDRs {ONLY}", False),
        ),
        (
            ["--healthz-bind-address=[2001:db8::1]:10256"],
            (),
            (V4,),
            ("IPv4-only but healthzBindAddress is IPv6", False),
        ),
        (["--healthz-bind-address=[2001:db8::1]:10256"], (), BOTH, None),
        (["--healthz-bind-address=[::]:10256"], (), (V4,), None),
        (
            ["--metrics-bind-address=[::1]:10249"],
            (),
            (V4,),
            ("IPv4-only but metricsBindAddress is IPv6", False),
        ),
    ],
)
def test_settings_that_are_all_of_the_other_family(
    flags: list[str],
    pod_cidrs: tuple[str, ...],
    families: tuple[Family, ...],
    expected: tuple[str, bool] | None,
) -> None:
    found = list(family_problems(config(*flags), pod_cidrs, families, V4))
    wanted = [
        FamilyProblem(f"cluster is {text}", is_fatal)
        for text, is_fatal in ([expected] if expected else [])
    ]
    assert found == wanted


# --- what modes and the host are given ---


def test_one_family_gets_its_own_view_of_the_node() -> None:
    identity = identify_node(("192.0.2.1", "2001:db8::1"), "0.0.0.0")
    found = node_facts(
        "worker-a",
        V6,
        config=config(DUAL_CIDRS, "--masquerade-all", "--metrics-bind-address=127.0.0.1:9249"),
        identity=identity,
        pod_cidrs=(),
        node_port_addresses=("192.0.2.0/24",),
        allows_external_ips=False,
        mode=load_mode("iptables"),
    )
    assert (found.mode, found.algorithms) == ("iptables", load_mode("iptables").algorithms)
    assert (found.name, found.ip, found.family) == ("worker-a", "2001:db8::1", V6)
    assert found.detector == cidr("fd00::/56")
    assert found.node_port_cidrs == ("::/0",)
    assert found.masquerade_all and not found.allows_external_ips
    assert found.own_ports == (10256, 9249)


def test_modes_read_their_options_from_flags() -> None:
    given = settings(
        "--proxy-mode=ipvs",
        "--iptables-masquerade-bit=7",
        "--ipvs-scheduler=lc",
        "--ipvs-strict-arp",
        "--ipvs-exclude-cidrs=192.0.2.9/24",
        "--ipvs-tcp-timeout=90s",
        "--ipvs-sync-period=11s",
        "--iptables-localhost-nodeports=false",
    )
    options = ipvs_options_of(given.config, given.extensions)
    assert options.mark == "0x00000080"
    assert (options.scheduler, options.strict_arp) == ("lc", True)
    assert options.exclude_cidrs == ("192.0.2.0/24",)
    assert options.tcp_timeout_seconds == 90
    of_iptables = iptables_options_of(given.config, given.extensions)
    assert of_iptables.sync_period_seconds == 11
    assert not of_iptables.localhost_node_ports


def test_conntrack_settings_come_from_flags() -> None:
    found = conntrack_settings(
        config("--conntrack-max-per-core=0", "--conntrack-udp-timeout=5s", "--conntrack-min=7")
    )
    assert (found.max_per_core, found.min, found.udp_seconds) == (0, 7, 5)
    assert found.tcp_established_seconds == 86400
