"""What an item is called in a sentence, and what its difference is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kpctl.trace.compare import Difference
from kpctl.trace.packets import Step
from kubeproxy.facts.node import SERVICE_LINK
from kubeproxy.modes.base import SCAFFOLD, AnyBackend, AnyItem, OwnedChange, Owner
from kubeproxy.modes.ipvs import items as ipvs
from kubeproxy.modes.ipvs.describe import format_entry
from kubeproxy.modes.netfilter import items as netfilter
from kubeproxy.modes.nftables import items as nftables
from kubeproxy.modes.nftables.names import TABLE_NAME
from kubeproxy.modes.userspace.items import Listener
from kubeproxy.sync.edits import edits_of

_MOST_LINES = 6


def owner_text(owners: Mapping[AnyItem, Owner], item: AnyItem | None) -> str:
    """The Service port whose item this is; empty if it is that of no single Service."""
    owner = owners.get(item) if item is not None else None
    return "" if owner is None or owner == SCAFFOLD else str(owner)


def item_text(step: Step) -> str:
    """The item that decided a step, as a noun."""
    match step.item:
        case nftables.ElementItem(set=name):
            return f"element {step.text.partition(' : ')[0]} in {name}"
        case nftables.PoolItem(map=name):
            return f"endpoints of {step.text.rpartition(' . ')[0]} in {name}"
        case nftables.ChainItem(name=name):
            return f"chain {name}"
        case nftables.TableItem():
            return f"table {TABLE_NAME}"
        case ipvs.SetEntry() as entry:
            return f"entry {format_entry(entry)} in set {entry.set_name}"
        case ipvs.VirtualServer() as server:
            return f"virtual server {server}"
        case ipvs.BoundAddress(address=address):
            return f"address {address} on {SERVICE_LINK}"
        case Listener(owner=owner, pool=pool):
            return f"listener of {owner} ({pool.value} endpoints)"
        case item:
            return _rule_text(item)


def _rule_text(item: AnyItem | None) -> str:
    match item:
        case netfilter.Section(table=table, chain=chain):
            return f"rules in chain {chain} of table {table}"
        case netfilter.Jump(table=table, chain=chain, rule=rule):
            target = rule.rpartition("-j ")[2]
            return f"jump from {chain} to {target} in table {table}"
        case netfilter.ChainGroup(table=table):
            return f"chains of a Service in table {table}"
        case (
            netfilter.Chain(table=table, name=name)
            | netfilter.SharedChain(table=table, name=name)
            | netfilter.GuestChain(table=table, name=name)
        ):
            return f"chain {name} of table {table}"
    return str(item)


def difference_lines(
    difference: Difference, backend: AnyBackend, owners: Mapping[AnyItem, Owner]
) -> Iterator[str]:
    """A sentence about the difference, and what differs as a diff shows it."""
    if difference.step is None:
        one, other = difference.between
        yield f"the {other} way ends otherwise than the {one} way"
        return
    noun = item_text(difference.step)
    owner = owner_text(owners, difference.item)
    of = f" of {owner}" if owner else ""
    if difference.held is None:
        yield f"the kernel has no {noun}{of}"
    elif difference.wanted is None:
        yield f"the kernel has {noun}, which nothing wants"
    else:
        yield f"the kernel has another {noun}{of}"
    yield from _diff(difference, backend)


def _diff(difference: Difference, backend: AnyBackend) -> Iterator[str]:
    change = OwnedChange(SCAFFOLD, difference.item, difference.held, difference.wanted)
    lines = [line for edit in edits_of(backend, [change], "") for line in edit.lines()]
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"… {len(lines) - _MOST_LINES} more lines"
