"""Who may connect: lists of sources, and what they mean for the node itself."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, node, plan, service

from kubeproxy.facts.ids import Family
from kubeproxy.plan.guard import guard_text, refusal
from kubeproxy.plan.types import Guard

POD = endpoint("10.244.1.1", 8080)
NODE = "192.0.2.10"


def guard(**lists: object) -> Guard:
    found = plan(service(**lists), [POD], node()).guard  # type: ignore[arg-type]
    assert found is not None
    return found


def test_without_lists_there_is_no_guard() -> None:
    assert plan(service(), [POD], node()).guard is None


@pytest.mark.parametrize(
    ("source", "admitted"),
    [("10.1.2.3", True), ("10.9.0.1", False), ("192.168.0.1", False)],
)
def test_deny_beats_allow(source: str, admitted: bool) -> None:
    found = guard(allow_sources=["10.0.0.0/8"], deny_sources=["10.9.0.0/16"])
    assert found.admits(source) is admitted
    assert (refusal(found, source) == "") is admitted


def test_everyone_is_allowed_who_is_not_denied() -> None:
    found = guard(deny_sources=["10.9.0.0/16"])
    assert found.admits("203.0.113.1")
    assert not found.admits("10.9.1.1")


def test_an_empty_allow_list_admits_no_client_and_that_is_noted() -> None:
    made = plan(service(allow_sources=[]), [POD], node())
    assert made.guard is not None
    assert not made.guard.admits("10.1.2.3")
    assert "the lists of sources leave no IPv4 client that may connect" in made.notes


@pytest.mark.parametrize("own", ["10.96.0.10", "203.0.113.7", "127.0.0.1"])
@pytest.mark.parametrize(
    ("lists", "admitted"),
    [
        ({"allow_sources": [f"{NODE}/32"]}, True),
        ({"allow_sources": ["198.51.100.0/24"]}, False),
        ({"deny_sources": [f"{NODE}/32"]}, False),
        ({"deny_sources": ["198.51.100.0/24"]}, True),
    ],
)
def test_the_node_is_judged_by_its_address_whichever_source_it_has(
    own: str, lists: dict[str, list[str]], admitted: bool
) -> None:
    """On a bound service address or a loopback one it comes with that address."""
    found = guard(external_ips=["203.0.113.7"], **lists)
    assert found.admits(NODE) is admitted
    assert found.admits(own) is admitted


def test_lists_are_shown_as_they_were_given() -> None:
    found = guard(allow_sources=[f"{NODE}/32"], deny_sources=["10.9.0.0/16"])
    assert guard_text(found) == f"only from {NODE}/32, not from 10.9.0.0/16"
    assert guard_text(guard(allow_sources=[])) == "only from nowhere"


def test_the_reason_names_the_annotation() -> None:
    found = guard(allow_sources=["10.0.0.0/8"], deny_sources=["10.9.0.0/16"])
    assert "kubeproxy/deny-sources" in refusal(found, "10.9.0.1")
    assert "kubeproxy/allow-sources" in refusal(found, "203.0.113.1")


def test_the_other_family_has_lists_of_its_own() -> None:
    facts = service(cluster_ip="fd00::10", allow_sources=["2001:db8::/32"])
    found = plan(facts, [endpoint("fd00:244::1", 8080)], node(Family.IPV6)).guard
    assert found is not None
    assert found.admits("2001:db8:1::1")
    assert not found.admits("fd00:244::2")
