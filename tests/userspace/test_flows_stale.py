"""Which UDP flows are stale where flows end at proxy ports."""

from __future__ import annotations

from tests.support.builders import endpoint, node, plan, port, service

from kubeproxy.facts.ids import Protocol
from kubeproxy.modes.userspace.items import Learned, Listener
from kubeproxy.modes.userspace.rules.flows import portal_flow_rules
from kubeproxy.plan.conntrack import FlowRules, may_leave_stale, owed_rules, pack_socket
from kubeproxy.plan.types import PoolName, ServicePlan

NODE = node(addresses=("10.244.1.1", "127.0.0.1", "192.0.2.10"))
VIP = pack_socket("10.96.0.10", 53)
PROXY = pack_socket("192.0.2.10", 40001)


def planned(*addresses: str, node_port: int = 0) -> ServicePlan:
    facts = service(ports=(port(53, name="dns", protocol=Protocol.UDP, node_port=node_port),))
    return plan(facts, [endpoint(address, 53) for address in addresses], NODE)


def learned(number: int = 40001) -> Learned:
    return Learned({Listener(planned().id, PoolName.CLUSTER): number})


def rules(made: ServicePlan | None, ports: Learned | None = None) -> FlowRules:
    return portal_flow_rules(made, NODE, learned() if ports is None else ports)


def is_stale(destination: bytes, reply_source: bytes, rules: FlowRules) -> bool:
    return rules[destination].is_stale(destination, reply_source)


def test_flows_to_a_new_portal_must_end_at_its_proxy_port() -> None:
    """On any address of the node, because redirecting picks one by the interface."""
    found = owed_rules({}, rules(planned("10.244.1.5")))
    assert not is_stale(VIP, PROXY, found)
    assert not is_stale(VIP, pack_socket("10.244.1.1", 40001), found)
    assert is_stale(VIP, VIP, found)
    assert is_stale(VIP, pack_socket("192.0.2.10", 39999), found)


def test_endpoints_come_and_go_without_touching_flows() -> None:
    """The carrier moves sessions by itself; deleting the flow would only lose answers."""
    assert not may_leave_stale(rules(planned("10.244.1.5")), rules(planned("10.244.1.6")))


def test_flows_of_a_removed_service_port_go() -> None:
    """What was open before the change is known from before it."""
    before, after = rules(planned("10.244.1.5")), rules(None, Learned())
    assert may_leave_stale(before, after)
    found = owed_rules(before, after)
    assert is_stale(VIP, PROXY, found)
    assert not is_stale(VIP, VIP, found)


def test_flows_of_a_portal_that_closes_go_and_the_others_stay() -> None:
    before, after = rules(planned("10.244.1.5", node_port=30053)), rules(planned("10.244.1.5"))
    found = owed_rules(before, after)
    node_port = (30053).to_bytes(2, "big")
    assert found[node_port].is_stale(pack_socket("192.0.2.10", 30053), PROXY)
    assert not is_stale(VIP, PROXY, found)


def test_flows_to_a_proxy_port_that_another_replaced_go() -> None:
    found = owed_rules(rules(planned("10.244.1.5"), learned(39999)), rules(planned("10.244.1.5")))
    assert is_stale(VIP, pack_socket("192.0.2.10", 39999), found)


def test_a_service_without_endpoints_has_no_portal() -> None:
    found = owed_rules(rules(planned("10.244.1.5")), rules(planned()))
    assert is_stale(VIP, PROXY, found)


def test_a_service_port_that_nothing_carries_has_no_portal() -> None:
    assert rules(planned("10.244.1.5"), Learned()) == {}


def test_tcp_is_never_looked_at() -> None:
    assert rules(plan(service(), [endpoint()], NODE)) == {}
