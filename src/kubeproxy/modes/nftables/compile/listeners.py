"""Changes to listeners on localhost become actions, one for each listener. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.modes.base import Batch, Change
from kubeproxy.modes.nftables.items import ListenerItem, Target


class Open(Struct, frozen=True):
    """Start to listen."""

    item: ListenerItem
    target: Target


class Retarget(Struct, frozen=True):
    """Let an open listener use other endpoints for new connections."""

    item: ListenerItem
    target: Target


class Close(Struct, frozen=True):
    """Stop to listen, if it was possible to start at all."""

    item: ListenerItem


Action: TypeAlias = Open | Retarget | Close


def compile_listeners(
    changes: Sequence[Change[ListenerItem, Target]], is_open: Container[ListenerItem]
) -> Iterator[Batch[Action]]:
    """One action for each change.

    The ledger believes in a listener whose port another process holds; only the sink knows which
    are open. So `is_open` decides between opening and retargeting, at the time of each action.
    """
    for change in changes:
        yield Batch((change,), _action(change, is_open))


def _action(change: Change[ListenerItem, Target], is_open: Container[ListenerItem]) -> Action:
    if change.new is None:
        return Close(change.item)
    if change.item in is_open:
        return Retarget(change.item, change.new)
    return Open(change.item, change.new)
