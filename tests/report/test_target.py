"""What a person can ask about."""

from __future__ import annotations

import pytest
from tests.support.builders import plan, service

from kpctl.snapshot.target import Target, WrongQuestion, matches, parse_target
from kubeproxy.facts.ids import Protocol, ServiceName


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("web", Target(name="web")),
        ("shop/web", Target(namespace="shop", name="web")),
        ("shop/web:http", Target(namespace="shop", name="web", port_name="http")),
        ("shop/tcp", Target(namespace="shop", name="tcp")),
        ("10.96.0.10:80", Target(address="10.96.0.10", port=80)),
        ("10.96.0.10:53/udp", Target(address="10.96.0.10", port=53, protocol=Protocol.UDP)),
        ("10.96.0.10", Target(address="10.96.0.10")),
        ("[fd00:0::10]:80", Target(address="fd00::10", port=80)),
        ("fd00::10", Target(address="fd00::10")),
        ("30080", Target(node_port=30080)),
        ("30080/TCP", Target(node_port=30080, protocol=Protocol.TCP)),
    ],
)
def test_a_name_a_place_and_a_node_port_are_understood(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "a/b/c", "0", "99999", "10.96.0.10:0", "[fd00::10]:99999"])
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(WrongQuestion):
        parse_target(text)


def test_a_name_without_namespace_is_in_the_given_one() -> None:
    assert parse_target("web", "shop").service == ServiceName("shop", "web")
    assert parse_target("other/web", "shop").service == ServiceName("other", "web")
    assert parse_target("web").service is None


def test_a_plan_is_found_by_every_place_where_it_is_served() -> None:
    found = plan(
        service(node_port=30080, external_ips=["203.0.113.1"], load_balancer_ips=["203.0.113.2"])
    )
    for text in ("10.96.0.10:80", "203.0.113.1:80", "203.0.113.2", "30080", "web", "default/web"):
        assert matches(parse_target(text), found), text
    for text in (
        "10.96.0.10:81",
        "203.0.113.3:80",
        "30081",
        "web2",
        "shop/web",
        "10.96.0.10:80/udp",
    ):
        assert not matches(parse_target(text), found), text
    assert matches(parse_target("192.0.2.10:30080"), found, ("192.0.2.10",))
