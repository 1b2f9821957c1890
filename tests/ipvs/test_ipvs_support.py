"""Kernel parameters, ownership and clean-up input: the pure parts of what touches the host."""

from __future__ import annotations

from typing import ClassVar

import pytest

from kubeproxy.errors import Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipvs.table import Ipvs
from kubeproxy.modes.ipvs.check import check, wanted_sysctls
from kubeproxy.modes.ipvs.cleanup import REMOVAL, has_evidence
from kubeproxy.modes.ipvs.items import SetEntry, VirtualServer
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.ipvs.rules.ownership import Exclusions, find_traces
from kubeproxy.modes.ipvs.scaffold import scope
from kubeproxy.modes.ipvs.sinks.draining import CUT_AFTER_SECONDS, Draining
from kubeproxy.modes.netfilter.rules.text import parse_save

REUSE = ("net/ipv4/vs/conn_reuse_mode", 0)


@pytest.mark.parametrize(
    ("release", "is_set"), [((4, 0), False), ((4, 1), True), ((5, 4), True), ((5, 9), False)]
)
def test_connection_reuse_is_switched_off_where_the_kernel_needs_it(
    release: tuple[int, int], is_set: bool
) -> None:
    assert (REUSE in wanted_sysctls(release, strict_arp=False)) is is_set


def test_strict_arp_sets_two_more_parameters_at_the_end() -> None:
    plain = wanted_sysctls((6, 1), strict_arp=False)
    strict = wanted_sysctls((6, 1), strict_arp=True)
    assert plain == [
        ("net/ipv4/vs/conntrack", 1),
        ("net/ipv4/vs/expire_nodest_conn", 1),
        ("net/ipv4/vs/expire_quiescent_template", 1),
        ("net/ipv4/ip_forward", 1),
    ]
    assert strict == [
        *plain,
        ("net/ipv4/conf/all/arp_ignore", 1),
        ("net/ipv4/conf/all/arp_announce", 2),
    ]


@pytest.mark.parametrize(
    ("server", "is_ours"),
    [
        (VirtualServer(6, "10.96.0.1", 80), True),  # in the set of cluster IPs
        (VirtualServer(17, "10.96.0.1", 80), False),  # another protocol
        (VirtualServer(17, "10.96.0.1", 81), False),
        (VirtualServer(6, "10.96.0.9", 443), True),  # on our link
        (VirtualServer(6, "192.0.2.10", 30080), True),  # a node port
        (VirtualServer(17, "192.0.2.10", 30080), False),
        (VirtualServer(132, "192.0.2.10", 30038), True),  # SCTP node ports have their address too
        (VirtualServer(132, "192.0.2.11", 30038), False),
    ],
)
def test_ours_are_recognised_by_the_traces_they_leave(server: VirtualServer, is_ours: bool) -> None:
    entries = [
        SetEntry("KUBE-CLUSTER-IP", "10.96.0.1", 6, 80),
        SetEntry("KUBE-NODE-PORT-TCP", port=30080),
        SetEntry("KUBE-NODE-PORT-SCTP-HASH", "192.0.2.10", 132, 30038),
        SetEntry("KUBE-LOOP-BACK", "10.244.0.1", 17, 81, "10.244.0.1"),
    ]
    assert find_traces(Family.IPV4, entries, {"10.96.0.9"}).include(server) is is_ours


def test_exclusions_are_of_one_family() -> None:
    cidrs = ("172.16.0.0/16", "fd99::/32")
    assert Exclusions(Family.IPV4, cidrs).cover("172.16.3.4")
    assert not Exclusions(Family.IPV4, cidrs).cover("172.17.0.1")
    assert Exclusions(Family.IPV6, cidrs).cover("fd99::1")
    assert not Exclusions(Family.IPV6, ()).cover("fd99::1")


SAVED = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:MINE - [0:0]
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A INPUT -j MINE
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A MINE -j KUBE-FORWARD
COMMIT
"""


def test_clean_up_leaves_foreign_rules_and_chains_they_use() -> None:
    """A chain that a foreign rule leads to is emptied, but cannot be deleted."""
    (table,) = parse_save(SAVED)
    assert has_evidence([table])
    assert REMOVAL.compose(table) == (
        "*filter\n"
        ":KUBE-FORWARD - [0:0]\n"
        ":KUBE-IPVS-FILTER - [0:0]\n"
        '-D FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD\n'
        '-D INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER\n'
        "-X KUBE-IPVS-FILTER\n"
        "COMMIT\n"
    )


def test_clean_up_leaves_the_iptables_mode_alone() -> None:
    """Some chains have the same name there; without a chain only ipvs has, nothing is ours."""
    (table,) = parse_save(SAVED.replace("KUBE-IPVS-FILTER", "KUBE-SERVICES"))
    assert not has_evidence([table])


def test_nothing_of_ours_means_nothing_to_do() -> None:
    (table,) = parse_save("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n")
    assert REMOVAL.compose(table) == ""


@pytest.mark.parametrize(
    ("table", "chain", "line", "order"),
    [
        ("nat", "KUBE-SERVICES", "-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN", (10, ())),
        (
            "nat",
            "KUBE-SERVICES",
            "-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT",
            (70, ()),
        ),
        (
            "nat",
            "KUBE-SERVICES",
            '-A KUBE-SERVICES ! -i veth+ -m comment --comment "x" '
            "-m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ",
            (30, ()),
        ),
        (
            "filter",
            "KUBE-IPVS-OUT-FILTER",
            "-A KUBE-IPVS-OUT-FILTER -s 198.51.100.7/32 -m ipvs --vproto 6 "
            "--vaddr 198.51.100.7 --vport 80 -j DROP",
            (0, ("198.51.100.7", "6", "00080")),
        ),
        ("nat", "KUBE-SERVICES", "-A KUBE-SERVICES -j LOG", None),
        ("filter", "KUBE-IPVS-OUT-FILTER", "-A KUBE-IPVS-OUT-FILTER -j LOG", None),
    ],
)
def test_rules_are_recognised_by_set_and_target(
    table: str, chain: str, line: str, order: object
) -> None:
    """Whatever the configuration was when they were written. Foreign rules are not."""
    assert scope(Family.IPV4).identify(table, chain, line) == order


def test_draining_forgets_with_the_virtual_server() -> None:
    draining = Draining(limit_seconds=600)
    server = VirtualServer(6, "10.96.0.1", 80)
    draining.add(server, [("10.244.0.1", 80), ("10.244.0.2", 80)])
    draining.discard(server, [("10.244.0.1", 80)])
    assert len(draining) == 1
    draining.forget(server)
    assert len(draining) == 0
    assert draining.seconds_left(0) is None


def test_a_pass_comes_once_a_minute_while_a_real_server_drains() -> None:
    draining = Draining(limit_seconds=600)
    server = VirtualServer(6, "10.96.0.1", 80)
    assert draining.take_due(0) == ()
    draining.add(server, [("10.244.0.1", 80)])
    assert draining.take_due(0) == (server,)
    assert draining.take_due(59) == ()
    assert draining.seconds_left(50) == 10
    assert draining.take_due(60) == (server,)


def test_a_service_with_a_limit_of_its_own_is_looked_at_when_that_is_up() -> None:
    """Between two passes, and a moment after the limit: sockets of this node are closed first."""
    draining = Draining(limit_seconds=600)
    other, server = VirtualServer(6, "10.96.0.2", 80), VirtualServer(17, "10.96.0.1", 53)
    draining.set_limit(server, 10.0)
    draining.add(other, [("10.244.0.1", 80)])
    draining.add(server, [("10.244.0.2", 53)])
    draining.take_due(0)
    draining.add(server, [("10.244.0.3", 53)])
    assert draining.take_due(4) == ()
    assert draining.seconds_left(4) == 6 + CUT_AFTER_SECONDS
    assert draining.take_due(10 + CUT_AFTER_SECONDS) == (server,)
    assert draining.expired(server, 10 + CUT_AFTER_SECONDS) == {("10.244.0.2", 53)}
    draining.set_limit(server, None)
    assert draining.take_due(20) == ()


class CountedServer(VirtualServer, frozen=True):
    """Counts how often one of them is looked up."""

    looks: ClassVar[int] = 0

    def __hash__(self) -> int:
        CountedServer.looks += 1
        return super().__hash__()


def test_servers_that_drain_are_not_looked_at_before_their_time() -> None:
    """However many do: a round looks at what it has changed, and at those whose time is up."""
    draining = Draining(limit_seconds=600)
    for number in range(500):
        server = CountedServer(6, "10.96.0.1", number)
        draining.set_limit(server, float(10 + number))
        draining.add(server, [("10.244.0.1", 80)])
    draining.take_due(0)
    CountedServer.looks = 0
    assert (draining.take_due(10), draining.seconds_left(10)) == ((), CUT_AFTER_SECONDS)
    assert CountedServer.looks < 5
    (first,) = draining.take_due(10 + CUT_AFTER_SECONDS)
    draining.discard(first, draining.expired(first, 10 + CUT_AFTER_SECONDS))
    assert draining.seconds_left(10 + CUT_AFTER_SECONDS) == 1
    assert CountedServer.looks < 20


def test_a_server_whose_time_is_up_is_looked_at_again_until_it_is_gone() -> None:
    """The kernel may refuse; and one that came later has its own time."""
    draining = Draining(limit_seconds=600)
    server = VirtualServer(6, "10.96.0.1", 80)
    draining.set_limit(server, 9.0)
    draining.add(server, [("10.244.0.1", 80)])
    draining.take_due(0)
    draining.add(server, [("10.244.0.2", 80)])
    draining.take_due(5)
    assert [draining.take_due(now) for now in (9, 10, 11)] == [(), (server,), (server,)]
    draining.discard(server, [("10.244.0.1", 80)])
    assert (draining.take_due(11), draining.seconds_left(11)) == ((), 4)
    draining.set_limit(server, 2.0)
    assert draining.take_due(11) == (server,)


@pytest.mark.kernel
async def test_a_kernel_without_ipvs_is_reported() -> None:
    """The reason modprobe gives is part of the answer."""
    try:
        Ipvs().close()
    except Unsupported:
        with pytest.raises(Unsupported, match="can't use the IPVS proxier: ipvs not supported by"):
            await check((Family.IPV4,), Options())
    else:
        pytest.skip("this kernel has IPVS")
