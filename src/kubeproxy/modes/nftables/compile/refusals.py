"""A refused message as text that names the object and the service it belongs to. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kubeproxy.kernel.nftables.wire import Refusal, Transaction, printable
from kubeproxy.modes.base import AnyChange, Owner, changes_of
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
)


def describe_refusal(
    refusal: Refusal, transaction: Transaction, changes: Sequence[AnyChange]
) -> str:
    """The object, the service it belongs to, and the kernel's reason."""
    key = transaction.element_key_at(refusal.position, refusal.offset)
    where, owner = next(_culprits(refusal, key, changes), (refusal.label, None))
    return printable(f"{where}{'' if owner is None else f' of {owner}'}: {refusal.text}")


def _culprits(
    refusal: Refusal, key: bytes | None, changes: Sequence[AnyChange]
) -> Iterator[tuple[str, Owner | None]]:
    """The changes that the refused message, or the element of this key in it, may stand for."""
    for spec in changes_of(changes, SetItem, SetSpec):
        if refusal.label.endswith(f" {spec.item.name}"):
            yield f"set {spec.item.name}", spec.owner
    for chain in changes_of(changes, ChainItem, Chain):
        if refusal.label.endswith(f" {chain.item.name}"):
            yield f"chain {chain.item.name}", chain.owner
    if key is None:
        return
    for element in changes_of(changes, ElementItem, Element):
        if element.item.key == key and element.item.set in refusal.label:
            yield f"element {key.hex()} of {element.item.set}", element.owner
    for pool in changes_of(changes, PoolItem, Pool):
        if pool.item.key == key[:-4] and pool.item.map in refusal.label:  # the index is cut off
            yield f"endpoints {pool.item.key.hex()} of {pool.item.map}", pool.owner
