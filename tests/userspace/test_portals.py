"""Rules of portals: v1.25's word for word, and what is ours beyond them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace
from tests.support.builders import endpoint, node, plan, port, service

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import DetectorKind, LocalDetector, NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.modes.netfilter.items import Jump, Position, Rules, Section
from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.items import Claim, Fragment, Learned, Listener, Uncarried
from kubeproxy.modes.userspace.options import Options
from kubeproxy.modes.userspace.render import claim_of, render
from kubeproxy.modes.userspace.rules.recognise import identify
from kubeproxy.modes.userspace.scaffold import scaffold
from kubeproxy.plan.types import PoolName, ServicePlan

NODE = node(addresses=("127.0.0.1", "192.0.2.10"))
ANYWHERE = Options()
PORTS = {PoolName.CLUSTER: 40001, PoolName.LOCAL: 40002}
REMOTE, LOCAL = endpoint("10.244.2.9"), endpoint("10.244.1.5", local=True)


def learned_of(planned: ServicePlan, on: NodeFacts) -> Learned:
    claims = {claim_of(frontend, planned, on) for frontend in planned.frontends} - {None}
    return Learned(
        {Listener(planned.id, pool): number for pool, number in PORTS.items()},
        {claim: planned.id for claim in claims if claim is not None},
    )


def rendered(
    facts: ServiceFacts,
    endpoints: Sequence[Endpoint] = (REMOTE,),
    *,
    on: NodeFacts = NODE,
    options: Options = ANYWHERE,
) -> Mapping[str, list[str]]:
    """Rules by chain, once everything is bound."""
    planned = plan(facts, endpoints, on)
    return chains(render(planned, on, options, learned_of(planned, on)))


def chains(items: Fragment) -> dict[str, list[str]]:
    return {
        item.chain: [line.removeprefix(f"-A {item.chain} ") for line in value.lines()]
        for item, value in items.items()
        if isinstance(item, Section) and isinstance(value, Rules)
    }


WEB = "-m comment --comment default/web:http -p tcp -m tcp --dport 80"


def because(reason: str) -> str:
    """The same with a reason in the comment."""
    return WEB.replace("default/web:http", f'"default/web:http {reason}"')


def test_a_cluster_ip_is_diverted_from_containers_and_from_the_host() -> None:
    assert rendered(service()) == {
        "KUBE-PORTALS-CONTAINER": [f"{WEB} -d 10.96.0.10 -j REDIRECT --to-ports 40001"],
        "KUBE-PORTALS-HOST": [
            f"{WEB} -d 10.96.0.10 -j DNAT --to-destination 192.0.2.10:40001",
        ],
    }


def test_a_specific_bind_address_is_where_everything_goes() -> None:
    found = rendered(service(), options=Options(bind_address="192.0.2.99"))
    target = "-j DNAT --to-destination 192.0.2.99:40001"
    assert found == {
        "KUBE-PORTALS-CONTAINER": [f"{WEB} -d 10.96.0.10 {target}"],
        "KUBE-PORTALS-HOST": [f"{WEB} -d 10.96.0.10 {target}"],
    }


def test_an_unnamed_port_has_no_colon_in_its_comment() -> None:
    facts = service(ports=(port(80, name="", protocol=Protocol.UDP),))
    (rule,) = rendered(facts)["KUBE-PORTALS-CONTAINER"]
    assert rule.startswith("-m comment --comment default/web -p udp -m udp --dport 80 -d")


def test_a_load_balancer_address_is_diverted_like_a_cluster_ip() -> None:
    found = rendered(service(load_balancer_ips=("198.51.100.7",)))
    assert found["KUBE-PORTALS-CONTAINER"][1] == (
        f"{WEB} -d 198.51.100.7 -j REDIRECT --to-ports 40001"
    )
    assert found["KUBE-PORTALS-HOST"][1].startswith(f"{WEB} -d 198.51.100.7 -j DNAT")


def test_an_external_ip_is_diverted_wherever_a_packet_comes_from() -> None:
    """From pods behind a bridge as well, and whether or not it is an address of the node."""
    for address in ("203.0.113.9", "192.0.2.10"):
        found = rendered(service(external_ips=(address,)))
        assert found["KUBE-PORTALS-CONTAINER"][1:] == [
            f"{WEB} -d {address} -j REDIRECT --to-ports 40001",
        ]
        assert found["KUBE-PORTALS-HOST"][1:] == [
            f"{WEB} -d {address} -j DNAT --to-destination 192.0.2.10:40001",
        ]


def test_a_node_port_is_diverted_and_its_proxy_port_let_in() -> None:
    """The filter sees the proxy port, since that is the destination once diverted."""
    found = rendered(service(node_port=30080))
    common = "-m comment --comment default/web:http -p tcp -m tcp --dport"
    assert found["KUBE-NODEPORT-CONTAINER"] == [f"{common} 30080 -j REDIRECT --to-ports 40001"]
    assert found["KUBE-NODEPORT-HOST"] == [
        f"{common} 30080 -j DNAT --to-destination 192.0.2.10:40001"
    ]
    assert found["KUBE-NODEPORT-NON-LOCAL"] == [f"{common} 40001 -m state --state NEW -j ACCEPT"]


def test_node_port_addresses_restrict_where_node_ports_are_served() -> None:
    on = replace(NODE, node_port_cidrs=("192.0.2.0/24",))
    found = rendered(service(node_port=30080), on=on)
    assert all(" -d 192.0.2.10 " in rule for rule in found["KUBE-NODEPORT-CONTAINER"])
    assert len(found["KUBE-NODEPORT-HOST"]) == 1


def test_node_ports_can_be_kept_off_localhost() -> None:
    options = Options(localhost_node_ports=False)
    (rule,) = rendered(service(node_port=30080), options=options)["KUBE-NODEPORT-HOST"]
    assert " --dport 30080 ! -d 127.0.0.0/8 -j DNAT" in rule
    on = replace(NODE, node_port_cidrs=("127.0.0.0/8", "192.0.2.0/24"))
    (rule,) = rendered(service(node_port=30080), options=options, on=on)["KUBE-NODEPORT-HOST"]
    assert " -d 192.0.2.10 " in rule


def test_ipv6_targets_are_bracketed() -> None:
    six = node(Family.IPV6, addresses=("2001:db8:10::10", "::1"))
    facts = service(cluster_ip="fd00:96::a")
    found = rendered(facts, [endpoint("fd00:244::5")], on=six, options=Options(bind_address="::"))
    assert found["KUBE-PORTALS-HOST"] == [
        f"{WEB} -d fd00:96::a -j DNAT --to-destination [2001:db8:10::10]:40001"
    ]


def test_a_node_without_an_address_of_its_own_redirects() -> None:
    alone = replace(NODE, ip="127.0.0.1", addresses=("127.0.0.1",))
    (rule,) = rendered(service(), on=alone)["KUBE-PORTALS-HOST"]
    assert rule.endswith("-j REDIRECT --to-ports 40001")


# --- what v1.25 did not know ---


def test_what_no_endpoint_serves_is_rejected_instead_of_diverted() -> None:
    found = rendered(service(node_port=30080), [])
    common = '-m comment --comment "default/web:http has no endpoints" -p tcp -m tcp --dport'
    assert found == {
        "KUBE-PORTALS-FILTER": [
            f"{common} 80 -d 10.96.0.10 -j REJECT",
            f"{common} 30080 -m addrtype --dst-type LOCAL -j REJECT",
        ]
    }


def test_internal_policy_local_uses_the_local_listener_or_drops() -> None:
    facts = service(internal_local=True)
    (rule,) = rendered(facts, [LOCAL, REMOTE])["KUBE-PORTALS-CONTAINER"]
    assert rule.endswith("--to-ports 40002")
    assert rendered(facts, [REMOTE]) == {
        "KUBE-PORTALS-FILTER": [f"{because('has no local endpoints')} -d 10.96.0.10 -j DROP"],
    }


def test_external_policy_local_treats_pods_and_the_node_as_insiders() -> None:
    """Pods of this node and the node itself use all endpoints, all others the local ones."""
    found = rendered(service(node_port=30080, external_local=True), [LOCAL, REMOTE])
    common = "-m comment --comment default/web:http -p tcp -m tcp --dport 30080"
    assert found["KUBE-NODEPORT-CONTAINER"] == [
        f"{common} -s 10.244.0.0/16 -j REDIRECT --to-ports 40001",
        f"{common} -j REDIRECT --to-ports 40002",
    ]
    assert found["KUBE-NODEPORT-HOST"] == [
        f"{common} -j DNAT --to-destination 192.0.2.10:40001",
    ]
    assert [rule.split()[9] for rule in found["KUBE-NODEPORT-NON-LOCAL"]] == ["40001", "40002"]


def test_external_policy_local_without_local_endpoints_drops_outsiders_only() -> None:
    found = rendered(service(node_port=30080, external_local=True), [REMOTE])
    assert [rule.split()[-1] for rule in found["KUBE-NODEPORT-CONTAINER"]] == ["40001"]
    assert found["KUBE-PORTALS-FILTER"][-1].endswith("-m addrtype --dst-type LOCAL -j DROP")


@pytest.mark.parametrize(
    ("detector", "match"),
    [
        (LocalDetector(DetectorKind.BRIDGE, "cni0"), " -i cni0 "),
        (LocalDetector(DetectorKind.INTERFACE_PREFIX, "cali"), " -i cali+ "),
    ],
)
def test_pods_are_recognised_by_their_interface(detector: LocalDetector, match: str) -> None:
    on = replace(NODE, detector=detector)
    facts = service(node_port=30080, external_local=True)
    assert match in rendered(facts, [LOCAL, REMOTE], on=on)["KUBE-NODEPORT-CONTAINER"][0]


def test_without_a_detector_pods_are_outsiders() -> None:
    on = replace(NODE, detector=LocalDetector())
    facts = service(node_port=30080, external_local=True)
    assert len(rendered(facts, [LOCAL, REMOTE], on=on)["KUBE-NODEPORT-CONTAINER"]) == 1


def test_source_ranges_let_some_in_and_drop_the_rest() -> None:
    facts = service(
        load_balancer_ips=("198.51.100.7",), source_ranges=("203.0.113.0/24", "10.0.0.0/8")
    )
    found = rendered(facts)
    vip = f"{WEB} -d 198.51.100.7"
    assert found["KUBE-PORTALS-CONTAINER"][1:] == [
        f"{vip} -s 203.0.113.0/24 -j REDIRECT --to-ports 40001",
        f"{vip} -s 10.0.0.0/8 -j REDIRECT --to-ports 40001",
    ]
    why = because("source is not in loadBalancerSourceRanges")
    assert found["KUBE-PORTALS-FILTER"] == [f"{why} -d 198.51.100.7 -j DROP"]


def test_insiders_must_be_within_the_source_ranges_too() -> None:
    """Of pod network and range the smaller one counts; ranges without pods are left out."""
    facts = service(
        load_balancer_ips=("198.51.100.7",),
        source_ranges=("10.0.0.0/8", "10.244.1.0/24", "203.0.113.0/24"),
        external_local=True,
    )
    found = rendered(facts, [LOCAL, REMOTE])["KUBE-PORTALS-CONTAINER"]
    to_cluster = [rule for rule in found if "198.51.100.7" in rule and rule.endswith("40001")]
    assert [rule.split(" -s ")[1].split()[0] for rule in to_cluster] == [
        "10.244.0.0/16",
        "10.244.1.0/24",
    ]


def test_lists_of_sources_hold_at_every_frontend() -> None:
    """What is denied is not diverted, even if it is allowed; what is not diverted is dropped."""
    facts = service(allow_sources=["10.0.0.0/8"], deny_sources=["10.9.0.0/16"], node_port=30080)
    found = rendered(facts)
    cluster_ip = f"{WEB} -d 10.96.0.10"
    assert found["KUBE-PORTALS-CONTAINER"] == [
        f"{cluster_ip} -s 10.9.0.0/16 -j RETURN",
        f"{cluster_ip} -s 10.0.0.0/8 -j REDIRECT --to-ports 40001",
    ]
    for chain in ("KUBE-PORTALS-HOST", "KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST"):
        denied, allowed = found[chain]
        assert denied.endswith(" -s 10.9.0.0/16 -j RETURN")
        assert " -s 10.0.0.0/8 -j " in allowed
    why = because("source is refused by annotation")
    dropped = found["KUBE-PORTALS-FILTER"]
    assert dropped[0] == f"{why} -d 10.96.0.10 -j DROP"
    assert len(dropped) == 2


def test_an_empty_list_of_sources_diverts_nothing() -> None:
    found = rendered(service(allow_sources=[], node_port=30080))
    assert not {"KUBE-PORTALS-CONTAINER", "KUBE-NODEPORT-HOST"} & set(found)
    assert len(found["KUBE-PORTALS-FILTER"]) == 2


def test_a_load_balancer_admits_whom_both_lists_admit() -> None:
    facts = service(
        load_balancer_ips=("198.51.100.7",),
        source_ranges=("203.0.113.0/24", "10.1.0.0/16"),
        allow_sources=["10.0.0.0/8"],
    )
    rules = rendered(facts)["KUBE-PORTALS-CONTAINER"]
    to_vip = [rule for rule in rules if "198.51.100.7" in rule]
    assert [rule.split(" -s ")[1].split()[0] for rule in to_vip] == ["10.1.0.0/16"]


# --- sockets ---


def sockets(items: Fragment) -> Fragment:
    return {item: value for item, value in items.items() if isinstance(item, (Listener, Claim))}


def test_sockets_come_first_and_rules_once_they_are_bound() -> None:
    planned = plan(service(node_port=30080, affinity_seconds=60), [REMOTE], NODE)
    items = render(planned, NODE, ANYWHERE, Learned())
    assert items == {
        Listener(planned.id, PoolName.CLUSTER): Balance((Target("10.244.2.9", 8080),), (), 60),
        Claim("", 30080, Protocol.TCP): planned.id,
    }


def test_a_service_without_endpoints_keeps_its_listener() -> None:
    """So that its proxy port stays the same when endpoints come and go."""
    planned = plan(service(), [], NODE)
    items = render(planned, NODE, ANYWHERE, Learned())
    assert items[Listener(planned.id, PoolName.CLUSTER)] == Balance(())


def test_udp_sessions_may_go_on_to_endpoints_that_still_serve() -> None:
    facts = service(ports=(port(53, name="dns", protocol=Protocol.UDP),))
    draining = endpoint("10.244.1.7", 53, ready=False, terminating=True)
    planned = plan(facts, [endpoint("10.244.1.6", 53), draining], NODE)
    value = render(planned, NODE, ANYWHERE, Learned())[Listener(planned.id, PoolName.CLUSTER)]
    assert isinstance(value, Balance)
    assert value.targets == (Target("10.244.1.6", 53),)
    assert Target("10.244.1.7", 53) in value.keep


def test_a_portal_on_an_address_of_this_node_claims_its_port() -> None:
    planned = plan(service(external_ips=("192.0.2.10", "203.0.113.9")), [REMOTE], NODE)
    items = sockets(render(planned, NODE, ANYWHERE, Learned()))
    assert Claim("192.0.2.10", 80, Protocol.TCP) in items
    assert len(items) == 2


def test_a_port_that_another_service_holds_opens_no_portal() -> None:
    planned = plan(service(node_port=30080), [REMOTE], NODE)
    held = learned_of(planned, NODE)
    other = plan(service("other/web", node_port=30080), [REMOTE], NODE).id
    taken = Learned(held.ports, {Claim("", 30080, Protocol.TCP): other})
    found = chains(render(planned, NODE, ANYWHERE, taken))
    assert set(found) == {"KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST"}


def test_sctp_cannot_be_carried() -> None:
    facts = service(ports=(port(3868, protocol=Protocol.SCTP),))
    planned = plan(facts, [REMOTE], NODE)
    assert render(planned, NODE, ANYWHERE, Learned()) == {
        Uncarried(planned.id): "SCTP is not supported for user space proxy"
    }


# --- scaffold ---


def test_rules_are_recognised_by_their_comment_and_protocol() -> None:
    line = '-A KUBE-PORTALS-HOST -d 10.96.0.10/32 -p udp -m comment --comment "ns/dns:53" -m udp'
    assert identify("nat", "KUBE-PORTALS-HOST", line) == (0, ("ns", "dns", "53", "UDP"))
    assert identify("nat", "X", "-A X -p tcp -j ACCEPT") is None
    assert identify("nat", "X", "-A X -p tcp -m comment --comment foreign -j ACCEPT") is None


def test_every_section_is_recognised_as_its_owners() -> None:
    """What is rendered and what is read after a restart have the same key."""
    planned = plan(service(node_port=30080, external_local=True), [LOCAL, REMOTE], NODE)
    items = render(planned, NODE, ANYWHERE, learned_of(planned, NODE))
    for item, value in items.items():
        if isinstance(item, Section) and isinstance(value, Rules):
            found = {identify(item.table, item.chain, line) for line in value.lines()}
            assert found == {item.order}


def test_the_scaffold_has_v125s_jumps_in_order() -> None:
    """Then ours, which refuse what is not served."""
    jumps = [item for item in scaffold(NODE, ANYWHERE).items() if isinstance(item[0], Jump)]
    vips = '-m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules"'
    ports = (
        "-m addrtype --dst-type LOCAL -m comment --comment "
        '"handle service NodePorts; NOTE: this must be the last rule in the chain"'
    )
    flow = '-m comment --comment "Ensure that non-local NodePort traffic can flow"'
    assert jumps[:5] == [
        (Jump("nat", "PREROUTING", f"{vips} -j KUBE-PORTALS-CONTAINER"), Position.FIRST),
        (Jump("nat", "OUTPUT", f"{vips} -j KUBE-PORTALS-HOST"), Position.FIRST),
        (Jump("nat", "PREROUTING", f"{ports} -j KUBE-NODEPORT-CONTAINER"), Position.LAST),
        (Jump("nat", "OUTPUT", f"{ports} -j KUBE-NODEPORT-HOST"), Position.LAST),
        (Jump("filter", "INPUT", f"{flow} -j KUBE-NODEPORT-NON-LOCAL"), Position.FIRST),
    ]
    assert {item.chain for item, _ in jumps[5:] if isinstance(item, Jump)} == {
        "INPUT",
        "FORWARD",
        "OUTPUT",
    }
