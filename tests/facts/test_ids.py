"""Names as keys: ordered, equal by value, lists in JSON, and small."""

from __future__ import annotations

import gc

import msgspec

from kubeproxy.facts.ids import Protocol, ServiceName, ServicePortId

CART = ServicePortId("shop", "cart", "http", Protocol.TCP)


def test_names_are_ordered_by_namespace_first() -> None:
    names = [ServiceName("shop", "cart"), ServiceName("default", "web"), ServiceName("shop", "a")]
    assert sorted(names) == [names[1], names[2], names[0]]
    assert max(CART, ServicePortId("shop", "a", "https", Protocol.TCP)) == CART


def test_equal_names_are_one_key() -> None:
    assert {CART.service: 1}[ServiceName("shop", "cart")] == 1


def test_names_are_lists_in_json() -> None:
    """The inspection API has them in this form."""
    for text, name in ((b'["shop","cart"]', CART.service), (b'["shop","cart","http","TCP"]', CART)):
        assert msgspec.json.encode(name) == text
        assert msgspec.json.decode(text, type=type(name)) == name


def test_the_garbage_collector_does_not_know_names() -> None:
    """There are several for every Service."""
    assert not gc.is_tracked(CART)
    assert not gc.is_tracked(CART.service)
