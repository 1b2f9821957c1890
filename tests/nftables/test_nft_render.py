"""Plans as elements, pools and chains; each row of the behaviour table."""

from __future__ import annotations

from tests.support.builders import endpoint, node, plans, port, service

from kubeproxy.facts.ids import Family, Protocol, ServicePortId
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.modes.base import SCAFFOLD
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.describe import describe, format_element
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Fragment,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
)
from kubeproxy.modes.nftables.names import layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.render import render
from kubeproxy.modes.nftables.rules.text import format_rule

OPTIONS = Options()
LOCAL = endpoint("10.244.1.1", 8080, local=True)
REMOTE = endpoint("10.244.2.2", 8080)
VIP = "203.0.113.9"


def rendered(facts: ServiceFacts, *pods: object, on: NodeFacts | None = None) -> Fragment:
    where = on or node()
    (found,) = plans(facts, pods, where)  # type: ignore[arg-type]
    return render(found, where, OPTIONS)


def elements(fragment: Fragment) -> dict[str, list[str]]:
    """Elements by set, as nft prints them, keys shortened to what a reader needs."""
    fields = {
        names.CLUSTER_IPS: ["address"],
        names.HAIRPIN: ["address", "address", "protocol", "port"],
        names.SERVICE_NODE_PORTS: ["protocol", "port"],
        names.NO_ENDPOINT_NODE_PORTS: ["protocol", "port"],
    }
    found: dict[str, list[str]] = {}
    for item, value in fragment.items():
        if isinstance(item, ElementItem) and isinstance(value, Element):
            shape = fields.get(item.set, ["address", "protocol", "port"])
            text = format_element(item, value, shape, layout_of(Family.IPV4))
            found.setdefault(item.set, []).append(text.replace(f' comment "{value.comment}"', ""))
    return found


def chain(fragment: Fragment, name: str) -> list[str]:
    value = fragment[ChainItem(name)]
    assert isinstance(value, Chain)
    return [format_rule(rule, layout_of(Family.IPV4)) for rule in value.rules]


def owned(fragment: Fragment) -> list[str]:
    """Prefixes of the chains that belong to this service alone."""
    return sorted(
        item.name.split("-")[0]
        for item, value in fragment.items()
        if isinstance(item, ChainItem) and isinstance(value, Chain) and value.kind.is_of_service
    )


def test_a_cluster_ip_is_dispatched_to_the_class_of_its_endpoint_count() -> None:
    """No chain, no set of its own: three elements and a pool."""
    found = rendered(service(), LOCAL, REMOTE)
    assert elements(found) == {
        "cluster-ips": ["10.96.0.10"],
        "hairpin-connections": ["10.244.1.1 . 10.244.1.1 . tcp . 8080"],
        "service-ips": ["10.96.0.10 . tcp . 80 : goto pick-2"],
    }
    assert chain(found, "pick-2") == [
        "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @service-pools"
    ]
    assert owned(found) == []


def test_a_pool_holds_its_endpoints_in_order() -> None:
    found = rendered(service(), LOCAL, REMOTE)
    key = names.service_key("10.96.0.10", 6, 80)
    slots = names.pack_slots((LOCAL, REMOTE))
    assert found[PoolItem("service-pools", key)] == Pool(slots)


def test_without_endpoints_connections_are_rejected() -> None:
    """By the filter hooks, because prerouting cannot reject on older kernels."""
    facts = service(node_port=30000, external_ips=["203.0.113.7"], load_balancer_ips=[VIP])
    assert elements(rendered(facts)) == {
        "cluster-ips": ["10.96.0.10"],
        "no-endpoint-services": [
            "10.96.0.10 . tcp . 80 : goto reject-chain",
            "203.0.113.7 . tcp . 80 : goto reject-chain",
            "203.0.113.9 . tcp . 80 : goto reject-chain",
        ],
        "no-endpoint-nodeports": ["tcp . 30000 : goto reject-chain"],
    }


def test_internal_policy_local_without_local_endpoints_drops() -> None:
    found = elements(rendered(service(internal_local=True), REMOTE))
    assert found["no-endpoint-services"] == ["10.96.0.10 . tcp . 80 : drop"]
    assert "service-ips" not in found


def test_internal_policy_local_uses_the_local_pool_only() -> None:
    found = rendered(service(internal_local=True), LOCAL, REMOTE)
    assert elements(found)["service-ips"] == ["10.96.0.10 . tcp . 80 : goto pick-1"]
    key = names.service_key("10.96.0.10", 6, 80)
    assert found[PoolItem("service-pools", key)] == Pool(names.pack_slots((LOCAL,)))


def test_external_traffic_is_masqueraded_under_policy_cluster() -> None:
    facts = service(node_port=30000, external_ips=["203.0.113.7"], load_balancer_ips=[VIP])
    found = rendered(facts, LOCAL, REMOTE)
    assert elements(found)["service-ips"][1:] == [
        "203.0.113.7 . tcp . 80 : goto external-2",
        "203.0.113.9 . tcp . 80 : goto external-2",
    ]
    assert elements(found)["service-nodeports"] == ["tcp . 30000 : goto nodeport-2"]
    masquerade = 'meta mark set meta mark | 0x00004000 comment "masquerade"'
    assert chain(found, "external-2") == [masquerade, "goto pick-2"]
    assert chain(found, "nodeport-2") == [masquerade, "goto nodeport-pick-2"]


def test_external_policy_local_keeps_clients_and_short_circuits_pods_and_node() -> None:
    found = rendered(service(external_local=True, load_balancer_ips=[VIP]), LOCAL, REMOTE)
    assert elements(found)["service-ips"][1] == "203.0.113.9 . tcp . 80 : goto external-local-2-1"
    assert chain(found, "external-local-2-1") == [
        'ip saddr 10.244.0.0/16 goto pick-2 comment "short-circuit pod traffic"',
        "fib saddr type local meta mark set meta mark | 0x00004000"
        ' comment "masquerade local traffic"',
        'fib saddr type local goto pick-2 comment "short-circuit local traffic"',
        "goto pick-local-1",
    ]
    key = names.service_key(VIP, 6, 80)
    assert found[PoolItem("service-local-pools", key)] == Pool(names.pack_slots((LOCAL,)))


def test_external_policy_local_without_local_endpoints_both_dispatches_and_drops() -> None:
    """Pods and node are served; the rest falls through to the drop."""
    found = rendered(service(external_local=True, node_port=30000), REMOTE)
    assert elements(found)["service-nodeports"] == ["tcp . 30000 : goto nodeport-local-1-0"]
    assert elements(found)["no-endpoint-nodeports"] == ["tcp . 30000 : drop"]
    assert chain(found, "nodeport-local-1-0")[-1] == (
        'fib saddr type local goto nodeport-pick-1 comment "short-circuit local traffic"'
    )


def test_source_ranges_guard_the_vip_even_without_endpoints() -> None:
    """Overlapping ranges are merged; the rest is dropped before DNAT."""
    facts = service(
        load_balancer_ips=[VIP], source_ranges=["203.0.113.0/25", "203.0.113.64/26", "10.0.0.0/8"]
    )
    found = rendered(facts)
    (name,) = [i.name for i in found if isinstance(i, ChainItem)]
    assert elements(found)["firewall-ips"] == [f"203.0.113.9 . tcp . 80 : goto {name}"]
    assert chain(found, name) == [
        "ip saddr 10.0.0.0/8 return",
        "ip saddr 203.0.113.0/25 return",
        "drop",
    ]


def test_the_vip_itself_may_connect_when_the_node_is_within_the_ranges() -> None:
    facts = service(load_balancer_ips=[VIP], source_ranges=["192.0.2.0/24"])
    found = rendered(facts, LOCAL, on=node(ip="192.0.2.10"))
    (name,) = [i.name for i in found if isinstance(i, ChainItem) and "/" in i.name]
    assert f"ip saddr {VIP} return" in chain(found, name)


def test_affinity_services_have_upstreams_sets_and_chains() -> None:
    """First the endpoint that served the client lately, then an equal chance for each."""
    found = rendered(service(affinity_seconds=60), LOCAL, REMOTE)
    assert owned(found) == ["endpoint", "endpoint", "service"]
    (name,) = [i.name for i in found if isinstance(i, ChainItem) and i.name.startswith("service-")]
    rules = chain(found, name)
    assert rules[2].startswith("numgen random mod 2 0 goto endpoint-")
    assert rules[3].startswith("goto endpoint-")
    sets = {i.name: v for i, v in found.items() if isinstance(i, SetItem)}
    assert all(name.startswith("affinity-") for name in sets)
    assert set(sets.values()) == {SetSpec(7, 4, flags=0x30, timeout_ms=60000)}
    (entry,) = [i.name for i in found if isinstance(i, ChainItem) and "10.244.2.2" in i.name]
    assert chain(found, entry) == [
        f"update @affinity-{entry.removeprefix('endpoint-')} {{ ip saddr }}",
        "meta l4proto tcp dnat to 10.244.2.2:8080",
    ]


def test_sctp_and_udp_have_their_own_keys() -> None:
    """The same number under three protocols is three frontends."""
    ports = [port(80, name=p.value, protocol=p) for p in Protocol]
    where = node()
    found = [render(p, where, OPTIONS) for p in plans(service(ports=ports), [LOCAL], where)]
    shown = [elements(fragment)["service-ips"][0] for fragment in found]
    assert shown == [f"10.96.0.10 . {p} . 80 : goto pick-1" for p in ("tcp", "udp", "sctp")]


def test_comments_name_the_service() -> None:
    """A reader of `nft list` finds the service by its name."""
    found = rendered(service("shop/cart", node_port=30000), LOCAL)
    comments = {v.comment for i, v in found.items() if isinstance(v, Element) and v.verdict}
    assert comments == {"shop/cart:http"}


def test_a_description_shows_the_smallest_owner_of_a_contested_item() -> None:
    """As the ledger decides it."""
    spec: Fragment = {SetItem("cluster-ips"): SetSpec(7, 4)}
    item = ElementItem("cluster-ips", b"\n\0\0\1")
    later = ServicePortId("z", "z", "", Protocol.TCP)
    text = describe(
        Family.IPV4,
        {later: {item: Element(comment="later")}, SCAFFOLD: {**spec, item: Element()}},
    )
    assert "10.0.0.1\n" in text
    assert "later" not in text
