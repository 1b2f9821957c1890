"""Who else sits where packets meet us: base chains of other tables, and rules before our jumps.

A packet passes everything at a hook in the order of priorities, the smallest first. Ours are at
-110, -100, 0 and 100. What comes before can drop, accept or translate a packet of a Service.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from kpctl.snapshot.types import Snapshot
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import Nftables
from kubeproxy.modes.base import AnyBackend, Other

_HOOKS = ("prerouting", "input", "forward", "output", "postrouting")
_FAMILIES = {Family.IPV4.af: "ip", Family.IPV6.af: "ip6", nft.NFPROTO_INET: "inet"}
_LEGACY = {Family.IPV4: "ip_tables_names", Family.IPV6: "ip6_tables_names"}
_LEGACY_PRIORITIES = {"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}


Others: TypeAlias = Mapping[Family, tuple[Other, ...]]


async def others_of(snapshot: Snapshot) -> Others:
    """Everything of other programs at the hooks of each family, in the order packets meet it."""
    return {
        family: tuple(sorted(await _others(snapshot.mode, backend), key=_order))
        for family, backend in snapshot.backends.items()
    }


async def _others(mode: str, backend: AnyBackend) -> list[Other]:
    found = [*_chains(mode, backend.family), *_legacy(mode, backend)]
    try:
        found += await backend.others()
    finally:
        await backend.close()
    return found


def _chains(mode: str, family: Family) -> Iterator[Other]:
    """Base chains in nf_tables. A host without nf_tables has none."""
    try:
        with Nftables(family.af) as nftables:
            listed = nftables.base_chains()
    except KernelError:
        return
    for number, chain in listed:
        hook = chain.hook
        if hook is None or hook.number >= len(_HOOKS) or _is_ours(mode, number, chain):
            continue
        name = f"table {_FAMILIES[number]} {nft.printable(chain.table)}"
        what = f"{name}, chain {nft.printable(chain.name)} ({hook.type})"
        yield Other(_HOOKS[hook.number], hook.priority, what)


def _is_ours(mode: str, family: int, chain: nft.ChainInfo) -> bool:
    """Is it our table, or a built-in chain of iptables-nft in which our jumps stand?"""
    if mode == "nftables":
        return chain.table == "kube-proxy" and family != nft.NFPROTO_INET
    is_builtin = chain.name in {hook.upper() for hook in _HOOKS}
    return is_builtin and chain.table in _LEGACY_PRIORITIES and family != nft.NFPROTO_INET


def _legacy(mode: str, backend: AnyBackend) -> Iterator[Other]:
    """Tables of iptables-legacy, which nf_tables does not show. In its modes they are ours."""
    if mode != "nftables":
        return
    for table in legacy_tables(backend.family):
        yield Other("any", _LEGACY_PRIORITIES.get(table, 0), f"iptables-legacy, table {table}")


def legacy_tables(family: Family, proc: Path = Path("/proc/thread-self/net")) -> Collection[str]:
    """The tables of iptables-legacy that exist in this network namespace."""
    try:
        return (proc / _LEGACY[family]).read_text().split()
    except OSError:
        return ()


def _order(other: Other) -> tuple[int, int, str]:
    place = _HOOKS.index(other.hook) if other.hook in _HOOKS else len(_HOOKS)
    return (place, other.priority, other.what)
