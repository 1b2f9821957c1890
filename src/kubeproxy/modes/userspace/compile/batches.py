"""Changes to sockets as batches. Pure.

Listeners go in bounded batches, each bound as a whole or not at all. Claims go one by one, so that
a port in use by another program stops nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from kubeproxy.facts.ids import ServicePortId
from kubeproxy.modes.base import Batch, Change, changes_of
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.items import Claim, Listener, SocketItem, SocketValue, Uncarried

LISTENERS_PER_BATCH = 128


class SocketPayload(Struct, frozen=True):
    """What one batch brings about; None stands for an item that is no longer wanted."""

    listeners: Mapping[Listener, Balance | None] = {}
    claims: Mapping[Claim, ServicePortId | None] = {}
    uncarried: Mapping[Uncarried, str | None] = {}


def compile_sockets(
    changes: Sequence[Change[SocketItem, SocketValue]],
) -> Iterator[Batch[SocketPayload]]:
    """Batches of listeners, then one batch for each claim, then what cannot be carried."""
    listeners = changes_of(changes, Listener, Balance)
    for start in range(0, len(listeners), LISTENERS_PER_BATCH):
        part = listeners[start : start + LISTENERS_PER_BATCH]
        yield Batch(tuple(part), SocketPayload(listeners={each.item: each.new for each in part}))
    for claim in changes_of(changes, Claim, ServicePortId):
        yield Batch((claim,), SocketPayload(claims={claim.item: claim.new}))
    if uncarried := changes_of(changes, Uncarried, str):
        reasons = {each.item: each.new for each in uncarried}
        yield Batch(tuple(uncarried), SocketPayload(uncarried=reasons))
