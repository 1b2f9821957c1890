"""Which service port a flow belongs to."""

from __future__ import annotations

from tests.support.builders import endpoint, node, plan, service

from kubeproxy.facts.ids import Protocol
from kubeproxy.plan.conntrack import pack_socket
from kubeproxy.plan.frontends import Frontends

WEB = plan(service(node_port=30080), [endpoint()])
API = plan(service("default/api"), [endpoint()])


def found(frontends: Frontends, address: str, port: int) -> str:
    plan = frontends.find(Protocol.TCP, pack_socket(address, port))
    return plan.id.name if plan else ""


def test_a_flow_is_found_by_where_it_was_sent() -> None:
    frontends = Frontends(node(), [WEB])
    assert found(frontends, "10.96.0.10", 80) == "web"
    assert not found(frontends, "10.96.0.10", 81)
    assert frontends.find(Protocol.UDP, pack_socket("10.96.0.10", 80)) is None


def test_a_node_port_is_served_on_addresses_of_the_node_only() -> None:
    frontends = Frontends(node(addresses=["192.0.2.10"]), [WEB])
    assert found(frontends, "192.0.2.10", 30080) == "web"
    assert not found(frontends, "192.0.2.99", 30080)
    frontends.set_node(node(addresses=["192.0.2.99"]))
    assert found(frontends, "192.0.2.99", 30080) == "web"


def test_of_two_claims_the_smaller_wins_and_the_next_shows_through() -> None:
    frontends = Frontends(node(), [WEB, API])
    assert found(frontends, "10.96.0.10", 80) == "api"
    frontends.remove([API])
    assert found(frontends, "10.96.0.10", 80) == "web"
    frontends.remove([WEB])
    assert not found(frontends, "10.96.0.10", 80)
