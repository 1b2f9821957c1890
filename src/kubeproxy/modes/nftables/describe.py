"""A whole table as text, in the order `nft list table` uses: sets, then chains. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import Fragment, Item, Owner, Value
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Hook,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
)
from kubeproxy.modes.nftables.names import FamilyLayout, layout_of
from kubeproxy.modes.nftables.rules.text import format_key, format_rule, format_verdict

_HOOKS = ("prerouting", "input", "forward", "output", "postrouting")
_TYPE_NAMES = {
    7: "ipv4_addr",
    8: "ipv6_addr",
    12: "inet_proto",
    13: "inet_service",
    19: "mark",
}
_FIELDS = {7: "address", 8: "address", 12: "protocol", 13: "port", 19: "index"}
_TIMEOUT = 0x10


def describe(family: Family, fragments: Mapping[Owner, Fragment]) -> str:
    """Everything these fragments would install; of a contested item the smallest owner's."""
    items: dict[Item, Value] = {}
    for owner in sorted(fragments):
        for item, value in fragments[owner].items():
            items.setdefault(item, value)
    layout = layout_of(family)
    name = "ip" if family is Family.IPV4 else "ip6"
    lines = [f"table {name} {names.TABLE_NAME} {{", f'\tcomment "{names.TABLE_COMMENT}"']
    lines += _set_lines(items, layout)
    lines += _chain_lines(items, layout)
    return "\n".join((*lines, "}", ""))


def _set_lines(items: Mapping[Item, Value], layout: FamilyLayout) -> Iterator[str]:
    elements = _element_lines(items, layout)
    for item, spec in items.items():
        if not isinstance(item, SetItem) or not isinstance(spec, SetSpec):
            continue
        yield f"\t{'map' if spec.data_type else 'set'} {item.name} {{"
        yield f"\t\ttype {_type_text(spec)}"
        if spec.flags & _TIMEOUT:
            yield f"\t\tflags dynamic,timeout; timeout {spec.timeout_ms // 1000}s"
        if item.name in names.COMMENTS:
            yield f'\t\tcomment "{names.COMMENTS[item.name]}"'
        if item.name in elements:
            inside = ",\n\t\t\t".join(sorted(elements[item.name]))
            yield f"\t\telements = {{\n\t\t\t{inside}\n\t\t}}"
        yield "\t}"


def type_ids(packed: int) -> list[int]:
    """The fields of a concatenation, first one first."""
    found: list[int] = []
    while packed:
        found.append(packed & 0x3F)
        packed >>= 6
    return found[::-1]


def _type_text(spec: SetSpec) -> str:
    key = " . ".join(_TYPE_NAMES[number] for number in type_ids(spec.key_type))
    if not spec.data_type:
        return key
    if not spec.data_length:
        return f"{key} : verdict"
    return f"{key} : {' . '.join(_TYPE_NAMES[n] for n in type_ids(spec.data_type))}"


def _element_lines(items: Mapping[Item, Value], layout: FamilyLayout) -> dict[str, list[str]]:
    specs = {
        item.name: [_FIELDS[number] for number in type_ids(spec.key_type)]
        for item, spec in items.items()
        if isinstance(item, SetItem) and isinstance(spec, SetSpec)
    }
    lines: dict[str, list[str]] = {}
    for item, value in items.items():
        if isinstance(item, ElementItem) and isinstance(value, Element):
            text = format_element(item, value, specs[item.set], layout)
            lines.setdefault(item.set, []).append(text)
        elif isinstance(item, PoolItem) and isinstance(value, Pool):
            pool = format_pool(item, value, specs[item.map], layout)
            lines.setdefault(item.map, []).extend(pool)
    return lines


def format_element(
    item: ElementItem, value: Element, fields: Sequence[str], layout: FamilyLayout
) -> str:
    """One element as nft prints it."""
    text = format_key(item.key, fields, layout)
    if value.comment:
        text += f' comment "{value.comment}"'
    return text if value.verdict is None else f"{text} : {format_verdict(value.verdict)}"


def format_pool(
    item: PoolItem, value: Pool, fields: Sequence[str], layout: FamilyLayout
) -> Iterator[str]:
    """A pool's elements as nft prints them."""
    width = layout.address_length + 4
    key = format_key(item.key, fields[:-1], layout)
    for index in range(len(value.slots) // width):
        slot = value.slots[index * width : (index + 1) * width]
        endpoint = format_key(slot, ("address", "port"), layout)
        yield f"{key} . 0x{index:08x} : {endpoint}"


def _chain_lines(items: Mapping[Item, Value], layout: FamilyLayout) -> Iterator[str]:
    for item, chain in items.items():
        if not isinstance(item, ChainItem) or not isinstance(chain, Chain):
            continue
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
