"""A whole table as text, in the order `nft list table` uses: sets, then chains. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.wire import Hook
from kubeproxy.modes.base import Owner, items_of
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Fragment,
    Item,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
    Value,
)
from kubeproxy.modes.nftables.names import FamilyLayout, layout_of
from kubeproxy.modes.nftables.rules.text import format_key, format_rule, format_verdict

_HOOKS = {
    nft.NF_INET_PRE_ROUTING: "prerouting",
    nft.NF_INET_LOCAL_IN: "input",
    nft.NF_INET_FORWARD: "forward",
    nft.NF_INET_LOCAL_OUT: "output",
    nft.NF_INET_POST_ROUTING: "postrouting",
}
_TYPE_NAMES = {
    nft.TYPE_IPADDR: "ipv4_addr",
    nft.TYPE_IP6ADDR: "ipv6_addr",
    nft.TYPE_INET_PROTOCOL: "inet_proto",
    nft.TYPE_INET_SERVICE: "inet_service",
    nft.TYPE_MARK: "mark",
}
_FIELDS = {
    nft.TYPE_IPADDR: "address",
    nft.TYPE_IP6ADDR: "address",
    nft.TYPE_INET_PROTOCOL: "protocol",
    nft.TYPE_INET_SERVICE: "port",
    nft.TYPE_MARK: "index",
}


def describe(family: Family, fragments: Mapping[Owner, Fragment]) -> str:
    """Everything these fragments would install, of a contested item the smallest owner's."""
    items: dict[Item, Value] = {}
    for owner in sorted(fragments):
        for item, value in fragments[owner].items():
            items.setdefault(item, value)
    layout = layout_of(family)
    name = "ip" if family is Family.IPV4 else "ip6"
    lines = [f"table {name} {names.TABLE_NAME} {{", f'\tcomment "{names.TABLE_COMMENT}"']
    lines += _set_lines(items, layout)
    lines += _chain_lines(items_of(items, ChainItem, Chain), layout)
    return "\n".join((*lines, "}", ""))


def _set_lines(items: Fragment, layout: FamilyLayout) -> Iterator[str]:
    specs = items_of(items, SetItem, SetSpec)
    elements = _element_lines(items, specs, layout)
    for item, spec in specs.items():
        yield f"\t{'map' if spec.data_type else 'set'} {item.name} {{"
        yield f"\t\ttype {_type_text(spec)}"
        if spec.flags & nft.NFT_SET_TIMEOUT:
            yield f"\t\tflags dynamic,timeout; timeout {spec.timeout_ms // 1000}s"
        if item.name in names.COMMENTS:
            yield f'\t\tcomment "{names.COMMENTS[item.name]}"'
        if item.name in elements:
            inside = ",\n\t\t\t".join(sorted(elements[item.name]))
            yield f"\t\telements = {{\n\t\t\t{inside}\n\t\t}}"
        yield "\t}"


def _types(packed: int) -> list[int]:
    """The types of a concatenation's fields, first one first."""
    found: list[int] = []
    while packed:
        found.append(packed & (1 << nft.TYPE_BITS) - 1)
        packed >>= nft.TYPE_BITS
    return found[::-1]


def _type_text(spec: SetSpec) -> str:
    key = " . ".join(_TYPE_NAMES[number] for number in _types(spec.key_type))
    if not spec.data_type:
        return key
    if not spec.data_length:
        return f"{key} : verdict"
    return f"{key} : {' . '.join(_TYPE_NAMES[n] for n in _types(spec.data_type))}"


def _element_lines(
    items: Fragment, specs: Mapping[SetItem, SetSpec], layout: FamilyLayout
) -> dict[str, list[str]]:
    fields = {
        item.name: [_FIELDS[number] for number in _types(spec.key_type)]
        for item, spec in specs.items()
    }
    lines: dict[str, list[str]] = {}
    for item, element in items_of(items, ElementItem, Element).items():
        text = format_element(item, element, fields[item.set], layout)
        lines.setdefault(item.set, []).append(text)
    for pool_item, pool in items_of(items, PoolItem, Pool).items():
        texts = _format_pool(pool_item, pool, fields[pool_item.map], layout)
        lines.setdefault(pool_item.map, []).extend(texts)
    return lines


def format_element(
    item: ElementItem, value: Element, fields: Sequence[str], layout: FamilyLayout
) -> str:
    """One element as nft prints it."""
    text = format_key(item.key, fields, layout)
    if value.comment:
        text += f' comment "{value.comment}"'
    return text if value.verdict is None else f"{text} : {format_verdict(value.verdict)}"


def _format_pool(
    item: PoolItem, value: Pool, fields: Sequence[str], layout: FamilyLayout
) -> Iterator[str]:
    """A pool's elements as nft prints them."""
    width = layout.address_length + 4
    key = format_key(item.key, fields[:-1], layout)
    for index in range(len(value.slots) // width):
        slot = value.slots[index * width : (index + 1) * width]
        endpoint = format_key(slot, ("address", "port"), layout)
        yield f"{key} . 0x{index:08x} : {endpoint}"


def _chain_lines(chains: Mapping[ChainItem, Chain], layout: FamilyLayout) -> Iterator[str]:
    for item, chain in chains.items():
        yield f"\tchain {item.name} {{"
        if item.name in names.COMMENTS:
            yield f'\t\tcomment "{names.COMMENTS[item.name]}"'
        if chain.hook is not None:
            yield f"\t\t{_hook_text(chain.hook)}"
        for rule in chain.rules:
            yield f"\t\t{format_rule(rule, layout)}"
        yield "\t}"


def _hook_text(hook: Hook) -> str:
    place = _HOOKS[hook.number]
    return f"type {hook.type} hook {place} priority {hook.priority}; policy accept;"
