"""Which UDP flows are stale where flows end at proxy ports."""

from __future__ import annotations

from tests.support.builders import endpoint, node, plan, port, service

from kubeproxy.facts.ids import Protocol
from kubeproxy.modes.userspace.items import Learned, Listener
from kubeproxy.modes.userspace.rules.flows import stale_portal_flows
from kubeproxy.plan.conntrack import is_stale, pack_socket
from kubeproxy.plan.types import PoolName, ServicePlan

NODE = node(addresses=("10.244.1.1", "127.0.0.1", "192.0.2.10"))
VIP = pack_socket("10.96.0.10", 53)
PROXY = pack_socket("192.0.2.10", 40001)


def planned(*addresses: str, node_port: int = 0) -> ServicePlan:
    facts = service(ports=(port(53, name="dns", protocol=Protocol.UDP, node_port=node_port),))
    return plan(facts, [endpoint(address, 53) for address in addresses], NODE)


def learned(number: int = 40001) -> Learned:
    return Learned({Listener(planned().id, PoolName.CLUSTER): number})


def test_flows_to_a_new_portal_must_end_at_its_proxy_port() -> None:
    """On any address of the node, because redirecting picks one by the interface."""
    rules = stale_portal_flows([(None, planned("10.244.1.5"))], NODE, learned(), {})
    assert not is_stale(VIP, PROXY, rules)
    assert not is_stale(VIP, pack_socket("10.244.1.1", 40001), rules)
    assert is_stale(VIP, VIP, rules)
    assert is_stale(VIP, pack_socket("192.0.2.10", 39999), rules)


def test_endpoints_come_and_go_without_touching_flows() -> None:
    """The carrier moves sessions by itself; deleting the flow would only lose answers."""
    change = (planned("10.244.1.5"), planned("10.244.1.6"))
    assert not stale_portal_flows([change], NODE, learned(), {})


def test_flows_of_a_removed_service_port_go() -> None:
    closed = learned().ports
    rules = stale_portal_flows([(planned("10.244.1.5"), None)], NODE, Learned(), closed)
    assert is_stale(VIP, PROXY, rules)
    assert not is_stale(VIP, VIP, rules)


def test_flows_of_a_portal_that_closes_go_and_the_others_stay() -> None:
    before, after = planned("10.244.1.5", node_port=30053), planned("10.244.1.5")
    rules = stale_portal_flows([(before, after)], NODE, learned(), {})
    assert is_stale(pack_socket("192.0.2.10", 30053), PROXY, rules)
    assert not is_stale(VIP, PROXY, rules)


def test_a_service_without_endpoints_has_no_portal() -> None:
    rules = stale_portal_flows([(planned("10.244.1.5"), planned())], NODE, learned(), {})
    assert is_stale(VIP, PROXY, rules)


def test_tcp_is_never_looked_at() -> None:
    tcp = plan(service(), [endpoint()], NODE)
    assert not stale_portal_flows([(None, tcp)], NODE, learned(), {})
