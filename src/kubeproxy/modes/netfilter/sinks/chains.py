"""Which chains there are in the tables of iptables, found without a tool.

Why: a tool is a process, and one of iptables-legacy copies the whole table whatever it is asked.
Promises: looking changes nothing, not even for legacy tables, which the kernel creates when it is
asked for their size. In nf_tables a chain is asked for by its name. A legacy table without rules or
chains of its own is not copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from kubeproxy.errors import Busy, KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.go.text import format_os_error
from kubeproxy.kernel.nftables.table import UNUSABLE, Nftables
from kubeproxy.kernel.xtables_info import XtablesInfo

_LEGACY_TABLES = {Family.IPV4: "ip_tables_names", Family.IPV6: "ip6_tables_names"}

_EMPTY = {"filter": 4, "nat": 5, "mangle": 6}
"""Entries of a legacy table without a rule: one for each built-in chain, and one at the end."""


def has_legacy_tables(family: Family, table: str = "") -> bool:
    """Does this network namespace have legacy tables, or this one?

    Raises Busy if that cannot be found out now: to take full tables for empty ones would have all
    rules written a second time.
    """
    try:
        names = Path("/proc/thread-self/net", _LEGACY_TABLES[family]).read_text().split()
    except (FileNotFoundError, PermissionError):
        return False  # not without the kernel module, and not for this user
    except OSError as error:
        text = f"cannot list the tables of iptables-legacy: {format_os_error(error)}"
        raise Busy(text, errno=error.errno or 0) from error
    return table in names if table else bool(names)


def is_empty_legacy(family: Family, table: str) -> bool:
    """Has this legacy table no rule and no chain but the built-in ones? Raises KernelError."""
    if not has_legacy_tables(family, table):
        return True
    with closing(XtablesInfo(family)) as info:
        size = info.read(table)
    return size is None or size.entries <= _EMPTY.get(table, 0)


def find_chains(
    family: Family, table: str, names: Iterable[str], *, is_nft: bool
) -> frozenset[str]:
    """Those of these chains that a table has. Raises KernelError."""
    if is_nft:
        return _asked_for(family, table, names)
    if is_empty_legacy(family, table):
        return frozenset()
    with closing(XtablesInfo(family)) as info:
        return info.find_chains(table, names)


def _asked_for(family: Family, table: str, names: Iterable[str]) -> frozenset[str]:
    try:
        with Nftables(family.af) as nftables:
            return frozenset(name for name in names if nftables.has_chain(table, name))
    except KernelError as error:
        if error.errno not in UNUSABLE:
            raise
        return frozenset()
