"""Whose fault was it: a refused message, in words that name the service and the object. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.base import Change
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import ChainItem, ElementItem, PoolItem, SetItem


def describe(refusal: nft.Refusal, transaction: nft.Batch, changes: Sequence[Change]) -> str:
    """The object, the service it belongs to, and the kernel's reason."""
    culprit = _culprit(refusal, transaction, changes)
    where = refusal.label if culprit is None else _item_text(culprit.item)
    owner = "" if culprit is None or culprit.owner is None else str(culprit.owner)
    return f"{where}{f' of {owner}' if owner else ''}: {refusal.text}"


def _culprit(
    refusal: nft.Refusal, transaction: nft.Batch, changes: Sequence[Change]
) -> Change | None:
    """The change the refused message, or the element at the kernel's offset in it, stands for."""
    key = transaction.element_key_at(refusal.position, refusal.offset)
    for change in changes:
        item = change.item
        if isinstance(item, (SetItem, ChainItem)) and refusal.label.endswith(f" {item.name}"):
            return change
        if key is None:
            continue
        if isinstance(item, ElementItem) and item.key == key and item.set in refusal.label:
            return change
        if isinstance(item, PoolItem) and item.key == key[:-4] and item.map in refusal.label:
            return change
    return None


def _item_text(item: object) -> str:
    if isinstance(item, SetItem):
        return f"set {item.name}"
    if isinstance(item, ChainItem):
        return f"chain {item.name}"
    if isinstance(item, ElementItem):
        return f"element {item.key.hex()} of {item.set}"
    if isinstance(item, PoolItem):
        return f"endpoints {item.key.hex()} of {item.map}"
    return f"table {names.TABLE_NAME}"
