"""Names as upstream spells them, and keys as the kernel lays them out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import endpoint, node, plan, service

from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.modes.base import items_of
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile.units import differing_slots
from kubeproxy.modes.nftables.items import Chain, ChainItem, ChainKind
from kubeproxy.modes.nftables.names import BASE_CHAINS, SCAFFOLD_CHAINS
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.render import render
from kubeproxy.modes.nftables.scaffold import scaffold


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("ns1/svc1/tcp/p80", "ULMVA6XW"),
        ("ns2/svc2/tcp/p80", "42NFTM6N"),
        ("ns5/svc5/tcp/p80", "HVFWP5L3"),
        ("ns5/svc5/tcp/p80__10.180.0.3/80", "GTK6MW7G"),
        ("ns1/svc1/tcp/p80__10.180.0.1/80", "5OJB2KTY"),
        ("ns1/svc1/tcp/", "6KJ5P52A"),
        ("testing/service/tcp/http", "P4ZYZVCF"),
    ],
)
def test_names_carry_upstreams_hash(name: str, digest: str) -> None:
    """Either proxy recognises the other's chains and sets."""
    assert names.base_name(name) == f"{digest}-{name}"


def test_a_long_name_is_cut_to_what_nft_accepts() -> None:
    """256 characters, 16 of them for a prefix; the hash keeps it unique."""
    cut = names.base_name("n" * 300)
    assert len(cut) == 240
    assert cut.endswith("n...")
    assert cut != names.base_name("n" * 301)


def test_an_empty_port_name_leaves_a_trailing_slash() -> None:
    """A service with one unnamed port."""
    unnamed = ServicePortId("ns1", "svc1", "", Protocol.TCP)
    assert names.service_port_name(unnamed) == "ns1/svc1/tcp/"


def test_colons_of_ipv6_become_dots_in_endpoint_names() -> None:
    """nft has no other way to put an address into a name."""
    owner = ServicePortId("ns", "svc", "p", Protocol.UDP)
    found = names.endpoint_name(owner, endpoint("fd00::1:2", 53))
    assert found == "ns/svc/udp/p__fd00..1.2/53"


def test_keys_are_padded_to_whole_words() -> None:
    """Protocol one byte, port two, each followed by zeros."""
    assert names.service_key("10.0.0.1", 6, 80).hex() == "0a0000010600000000500000"
    assert names.node_port_key(132, 30000).hex() == "8400000075300000"
    assert names.slot("10.244.1.5", 8080).hex() == "0af401051f900000"
    assert len(names.service_key("fd00::1", 17, 53)) == 24
    assert len(names.hairpin_key(endpoint("fd00::1", 53), 17)) == 40


def test_our_own_names_are_safe_from_upstreams_garbage_collection() -> None:
    """It deletes sets called affinity-… and chains with a slash."""
    assert not any(name.startswith("affinity-") for name in names.POOL_MAPS)
    assert not any("/" in name for name in (*names.POOL_MAPS, *SCAFFOLD_CHAINS, *BASE_CHAINS))


def test_a_found_chain_has_the_kind_it_was_rendered_with() -> None:
    """Otherwise a restart would find every chain changed."""
    on = node(node_port_cidrs=["192.0.2.0/24"])
    pods = [endpoint("10.244.1.1", local=True), endpoint("10.244.1.2")]
    rendered = dict(scaffold(on, Options()))
    for local in (False, True):
        for seconds in (0, 60):
            facts = service(
                node_port=30000,
                load_balancer_ips=["203.0.113.9"],
                source_ranges=["192.0.2.0/24"],
                external_local=local,
                affinity_seconds=seconds,
            )
            rendered |= render(plan(facts, pods, on), on, Options())
    kinds = {item.name: chain.kind for item, chain in items_of(rendered, ChainItem, Chain).items()}
    assert {name: names.chain_kind(name) for name in kinds} == kinds
    assert set(kinds.values()) == set(ChainKind)


@pytest.mark.parametrize("count", [1, 255, 256, 300])
def test_slots_of_a_pool_are_in_order_however_many(count: int) -> None:
    """Those of long pools are remembered, which must not show."""
    endpoints = [endpoint(f"10.244.{n >> 8}.{n & 255}", 8000 + n % 7) for n in range(count)]
    packed = b"".join(names.slot(e.address, e.port) for e in endpoints)
    assert names.pack_slots(endpoints) == packed == names.pack_slots(endpoints)


@given(st.lists(st.integers(0, 2), max_size=200), st.lists(st.integers(0, 2), max_size=200))
def test_slots_that_differ_are_found_among_many_that_do_not(old: list[int], new: list[int]) -> None:
    before, after = (b"".join(bytes((n,)) * 8 for n in slots * 3) for slots in (old, new))
    end = max(len(before), len(after))
    slow = [s for s in range(0, end, 8) if before[s : s + 8] != after[s : s + 8]]
    assert differing_slots(before, after, 8) == slow
