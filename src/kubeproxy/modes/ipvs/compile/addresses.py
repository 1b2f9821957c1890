"""From changes of bound addresses to batches for rtnetlink. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from kubeproxy.modes.base import AnyChange, Batch, Change, changes_of
from kubeproxy.modes.ipvs.items import AddressItem, BoundAddress, Presence, ServiceLink

_ADDRESSES_PER_BATCH = 1000
_BYTES_PER_ADDRESS = 40
"""For reports: the messages are framed by `kernel.route`, which knows the link's index."""


class AddressWork(Struct, frozen=True):
    """Addresses to bind to the link, and to unbind from it."""

    add: tuple[str, ...]
    delete: tuple[str, ...]


def compile_addresses(
    changes: Sequence[Change[AddressItem, Presence]],
) -> Iterator[Batch[AddressWork]]:
    """The link's change before those of its addresses.

    The link is in no payload: every batch makes sure that it exists.
    """
    ordered: list[AnyChange] = [
        *changes_of(changes, ServiceLink, Presence),
        *changes_of(changes, BoundAddress, Presence),
    ]
    for start in range(0, len(ordered), _ADDRESSES_PER_BATCH):
        part = tuple(ordered[start : start + _ADDRESSES_PER_BATCH])
        bound = changes_of(part, BoundAddress, Presence)
        work = AddressWork(
            add=tuple(change.item.address for change in bound if change.new is not None),
            delete=tuple(change.item.address for change in bound if change.new is None),
        )
        yield Batch(part, work, size=len(part) * _BYTES_PER_ADDRESS)
