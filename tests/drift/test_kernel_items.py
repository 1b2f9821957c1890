"""Items of every mode as plain data: what is written is read back equal."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.worlds import worlds

from kpctl.snapshot.kernel_items import decode_items, encode_items, item_types
from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyItem, AnyValue
from kubeproxy.modes.netfilter.items import Chain, GroupRules, GuestChain, GuestRules, Rules
from kubeproxy.modes.nftables.items import Chain as NftChain
from kubeproxy.modes.nftables.items import ChainItem, ChainKind, SetItem
from kubeproxy.modes.nftables.rules.expressions import Rule, Unknown
from kubeproxy.modes.registry import load_mode, mode_names


def written_and_read(items: dict[AnyItem, AnyValue], mode: str) -> dict[AnyItem, AnyValue]:
    """Through JSON, as in a bundle."""
    data = msgspec.json.decode(msgspec.json.encode(encode_items(items)))
    return decode_items(data, mode)


def assert_same(read: dict[AnyItem, AnyValue], items: dict[AnyItem, AnyValue]) -> None:
    assert read == items
    # Values that are equal by their meaning must also be the same type by type.
    assert list(map(repr, read.items())) == list(map(repr, items.items()))


@pytest.mark.parametrize("mode", mode_names())
@given(data=st.data())
def test_whatever_a_mode_wants_is_read_back_equal(mode: str, data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(list(Family)))
    settings = parse_command_line(["--nftables-localhost-nodeports=true"])
    assert isinstance(settings, Settings)
    found = load_mode(mode)
    backend = found.create(family, found.options(settings.config, settings.extensions))
    world = data.draw(worlds(family, mode))
    items = dict(backend.scaffold(world.node))
    for plan in world.plans():
        items |= backend.render(plan, world.node)
    assert items
    assert_same(written_and_read(items, mode), items)


def test_what_only_another_program_writes_is_read_back_equal() -> None:
    """Expressions that we never use, names that are no text."""
    broken = b"caf\xe9".decode(errors="surrogateescape")
    rule = Rule((Unknown("quota", ((1, b"\0\xff"), (2, b""))),), broken)
    nftables: dict[AnyItem, AnyValue] = {ChainItem(broken): NftChain(ChainKind.BASE, (rule,))}
    assert_same(written_and_read(nftables, "nftables"), nftables)
    iptables: dict[AnyItem, AnyValue] = {
        Chain("nat", "KUBE-X"): Rules("-A KUBE-X -j RETURN\n"),
        Chain("nat", "KUBE-Y"): GroupRules({"KUBE-SEP-A": "-A KUBE-SEP-A\n", "KUBE-SVC-B": ""}),
        GuestChain("filter", "KUBE-FIREWALL"): GuestRules("-A KUBE-FIREWALL\n", is_read=True),
    }
    assert_same(written_and_read(iptables, "iptables"), iptables)


@pytest.mark.parametrize(
    "data", [{}, [1], [[["Popen", "x"], None]], [[["SetItem"], 1, 2]], [[[], 1]]]
)
def test_other_data_is_refused(data: object) -> None:
    """A file names no type but those of the mode's items."""
    assert item_types("nftables")["SetItem"] is SetItem
    with pytest.raises(ProxyError, match="not understood"):
        decode_items(data, "nftables")
