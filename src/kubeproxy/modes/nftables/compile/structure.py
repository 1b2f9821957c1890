"""Tables, sets and chains with their rules as transactions. Pure.

Structure is built in the order in which it may point to each other, and removed in the reverse: a
rule never names what is not there yet, and nothing is deleted while a rule still names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.base import Batch, Change
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.items import Chain, ChainItem, SetItem, SetSpec, Table, TableItem
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.scaffold import BASE_CHAINS, SCAFFOLD_CHAINS


def is_scaffold_chain(item: object) -> bool:
    return isinstance(item, ChainItem) and _rank(item) >= _SCAFFOLD_RANK


def _rank(item: object) -> int:
    """Structure in the order it may point to each other: later ones point to earlier ones."""
    if isinstance(item, TableItem):
        return 0
    if isinstance(item, SetItem):
        return 1
    if not isinstance(item, ChainItem):
        raise TypeError(f"not a structural item: {item!r}")
    if item.name in BASE_CHAINS:
        return _SCAFFOLD_RANK + 1
    return _owned_chain_rank(item.name) if "/" in item.name else _class_chain_rank(item.name)


def _owned_chain_rank(name: str) -> int:
    """endpoint- ← service-, local- ← external-"""
    if name.startswith("endpoint-"):
        return 2
    return 3 if name.startswith(("service-", "local-")) else 4


def _class_chain_rank(name: str) -> int:
    """pick ← whatever masquerades or short-circuits first ← the scaffold"""
    if name in SCAFFOLD_CHAINS:
        return _SCAFFOLD_RANK
    return 2 if name.startswith(("pick-", "nodeport-pick-")) else 3


_SCAFFOLD_RANK = 5


def by_rank(changes: Iterable[Change], *, reverse: bool = False) -> list[Change]:
    return sorted(changes, key=lambda change: _rank(change.item), reverse=reverse)


class Builder:
    """A transaction in the making."""

    def __init__(self, layout: FamilyLayout) -> None:
        self.batch = nft.Batch(layout.number)
        self.changes: list[Change] = []

    def add(self, kind: int, body: bytes, label: str, flags: int = 0) -> None:
        self.batch.add(kind, body, label, flags)

    def done(self) -> Batch:
        return Batch(tuple(self.changes), self.batch, self.batch.size)


def structure_batches(
    layout: FamilyLayout, changes: Sequence[Change], limit: int
) -> Iterator[Batch]:
    """Sets and chains with their rules; chains are declared before any rule that may name them."""
    for part in _parts(by_rank(changes), limit):
        builder = Builder(layout)
        builder.changes.extend(part)
        build_structure(builder, part)
        yield builder.done()


def build_structure(builder: Builder, changes: Sequence[Change]) -> None:
    for change in changes:
        _declare(builder, change)
    for change in changes:
        if isinstance(change.new, Chain):
            _write_rules(builder, change.item, change.old, change.new)


def _parts(changes: list[Change], limit: int) -> Iterator[list[Change]]:
    """Cut between items once a part is big; an estimate is good enough for a bound."""
    part: list[Change] = []
    size = 0
    for change in changes:
        weight = weight_of(change.new)
        if part and size + weight > limit:
            yield part
            part, size = [], 0
        part.append(change)
        size += weight
    if part:
        yield part


def weight_of(value: object) -> int:
    """Roughly the bytes a structural item takes."""
    return 150 + (400 * len(value.rules) if isinstance(value, Chain) else 0)


def _declare(builder: Builder, change: Change) -> None:
    item, old, new = change.item, change.old, change.new
    if isinstance(item, TableItem):
        _declare_table(builder, old)
    elif isinstance(item, SetItem) and isinstance(new, SetSpec):
        body = codec.set_body(item.name, new, len(builder.batch) + 1)
        builder.add(nft.NEWSET, body, f"set {item.name}", nft.CREATE)
    elif isinstance(item, ChainItem) and isinstance(new, Chain):
        _declare_chain(builder, item, old, new)


def _declare_table(builder: Builder, old: object) -> None:
    label = f"table {names.TABLE_NAME}"
    if isinstance(old, Table):  # somebody else's, in a form that cannot be adopted
        builder.add(nft.DELTABLE, nft.table_body(names.TABLE_NAME), label)
    body = nft.table_body(names.TABLE_NAME, names.TABLE_COMMENT)
    builder.add(nft.NEWTABLE, body, label, nft.CREATE)


def _declare_chain(builder: Builder, item: ChainItem, old: object, new: Chain) -> None:
    label = f"chain {item.name}"
    if isinstance(old, Chain):
        if old.hook == new.hook:
            return
        # A hook cannot be changed; deleting a base chain takes its rules along.
        body = nft.chain_body(names.TABLE_NAME, item.name)
        builder.add(nft.DELCHAIN, body, label)
    builder.add(nft.NEWCHAIN, codec.chain_body(item.name, new), label, nft.CREATE)


def _write_rules(builder: Builder, item: object, old: object, new: Chain) -> None:
    if not isinstance(item, ChainItem):
        return
    if isinstance(old, Chain) and old.hook == new.hook and old.rules:
        _flush(builder, item.name)
    for rule in new.rules:
        body = codec.rule_body(item.name, rule)
        builder.add(nft.NEWRULE, body, f"rule in chain {item.name}", nft.APPEND)


def _flush(builder: Builder, chain: str) -> None:
    body = nft.reference(names.TABLE_NAME, chain)
    builder.add(nft.DELRULE, body, f"rules of chain {chain}")


def removal_batches(layout: FamilyLayout, changes: Sequence[Change], limit: int) -> Iterator[Batch]:
    """Whatever points elsewhere goes first: rules, then chains, then sets."""
    for part in _parts(by_rank(changes, reverse=True), limit):
        builder = Builder(layout)
        builder.changes.extend(part)
        for change in part:
            if isinstance(change.item, ChainItem) and _has_rules(change.old):
                _flush(builder, change.item.name)
        for change in part:
            _remove(builder, change.item)
        yield builder.done()


def _has_rules(value: object) -> bool:
    return isinstance(value, Chain) and bool(value.rules)


def _remove(builder: Builder, item: object) -> None:
    if isinstance(item, ChainItem):
        body = nft.chain_body(names.TABLE_NAME, item.name)
        builder.add(nft.DELCHAIN, body, f"chain {item.name}")
    elif isinstance(item, SetItem):
        body = nft.reference(names.TABLE_NAME, item.name)
        builder.add(nft.DELSET, body, f"set {item.name}")
    elif isinstance(item, TableItem):
        body = nft.table_body(names.TABLE_NAME)
        builder.add(nft.DELTABLE, body, f"table {names.TABLE_NAME}")
