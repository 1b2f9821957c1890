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
from kubeproxy.modes.nftables.rules.typeof import has_index, typeof_text, types_of
from kubeproxy.modes.nftables.scaffold import known_set_specs

HOOKS = {
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
}
_FIELDS = {
    nft.TYPE_IPADDR: "address",
    nft.TYPE_IP6ADDR: "address",
    nft.TYPE_INET_PROTOCOL: "protocol",
    nft.TYPE_INET_SERVICE: "port",
    nft.TYPE_MARK: "index",
}


def describe(family: Family, fragments: Mapping[Owner, Fragment]) -> str:
    """Everything these fragments would install, of a contested item the smallest owner's.

    Without the scaffold's fragment, its sets are declared as far as elements need them.
    """
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


def item_lines(items: Fragment, layout: FamilyLayout) -> list[str]:
    """A line for each set, element, chain and rule among these items."""
    fields = {name: fields_of(spec) for name, spec in known_set_specs(layout).items()}
    return [
        line for item, value in items.items() for line in _item_lines(item, value, fields, layout)
    ]


def _item_lines(
    item: Item, value: Value, fields: Mapping[str, Sequence[str]], layout: FamilyLayout
) -> Iterator[str]:
    match item, value:
        case SetItem(), SetSpec():
            yield f"{'map' if value.data_type else 'set'} {item.name}"
        case ChainItem(), Chain():
            yield f"chain {item.name}"
            if value.hook is not None:
                yield f"chain {item.name} {_hook_text(value.hook)}"
            yield from (f"rule {item.name} {format_rule(rule, layout)}" for rule in value.rules)
        case ElementItem(), Element() if item.set in fields:
            text = format_element(item, value, fields[item.set], layout)
            yield f"element {item.set} {{ {text} }}"
        case PoolItem(), Pool() if item.map in fields:
            for text in _format_pool(item, value, fields[item.map], layout):
                yield f"element {item.map} {{ {text} }}"
        case _:
            yield f"{type(item).__name__.removesuffix('Item').lower()} {item}"


def fields_of(spec: SetSpec) -> list[str]:
    """What a key of the set is made of, in the words of `format_key`."""
    return [_FIELDS[number] for number in types_of(spec.key_type)]


def _set_lines(items: Fragment, layout: FamilyLayout) -> Iterator[str]:
    scaffold = {SetItem(name): spec for name, spec in known_set_specs(layout).items()}
    specs = items_of(items, SetItem, SetSpec)
    elements = _element_lines(items, scaffold | specs, layout)
    specs |= {item: spec for item, spec in scaffold.items() if item.name in elements}
    for item, spec in specs.items():
        yield f"\t{'map' if spec.data_type else 'set'} {item.name} {{"
        yield f"\t\t{_type_text(spec)}"
        if spec.flags & nft.NFT_SET_TIMEOUT:
            yield f"\t\tflags dynamic,timeout; timeout {spec.timeout_ms // 1000}s"
        if spec.counts:
            yield "\t\tcounter"
        if item.name in names.COMMENTS:
            yield f'\t\tcomment "{names.COMMENTS[item.name]}"'
        if item.name in elements:
            inside = ",\n\t\t\t".join(sorted(elements[item.name]))
            yield f"\t\telements = {{\n\t\t\t{inside}\n\t\t}}"
        yield "\t}"


def _type_text(spec: SetSpec) -> str:
    if has_index(spec):
        return f"typeof {typeof_text(spec.key_type)} : {typeof_text(spec.data_type)}"
    key = " . ".join(_TYPE_NAMES[number] for number in types_of(spec.key_type))
    return f"type {key} : verdict" if spec.data_type else f"type {key}"


def _element_lines(
    items: Fragment, specs: Mapping[SetItem, SetSpec], layout: FamilyLayout
) -> dict[str, list[str]]:
    fields = {item.name: fields_of(spec) for item, spec in specs.items()}
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
        yield f"{key} . {index} : {endpoint}"


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
    place = HOOKS[hook.number]
    return f"type {hook.type} hook {place} priority {hook.priority}; policy accept;"
