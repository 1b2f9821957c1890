"""Removes everything this mode ever put into the kernel: its table in both families.

Which proxy made the table does not matter: upstream's has the same name and is removed too.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import UNUSABLE, Nftables, raise_refusals
from kubeproxy.modes.base import Retired, Running
from kubeproxy.modes.nftables.names import TABLE_NAME, layout_of


async def cleanup() -> Sequence[str]:
    """Delete our tables in the current network namespace. Return descriptions of problems."""
    problems = []
    for family in Family:
        try:
            _delete_table(family)
        except KernelError as error:
            if error.errno not in UNUSABLE:
                problems.append(f"{family.value} table {TABLE_NAME}: {error}")
    return problems


async def retire(_: Running) -> Retired:
    """Do the same: no other mode has anything in these tables, and conntrack keeps open flows."""
    return Retired(tuple(await cleanup()))


def _delete_table(family: Family) -> None:
    with Nftables(layout_of(family).number) as nftables:
        if not any(table.name == TABLE_NAME for table in nftables.tables()):
            return
        transaction = nft.Transaction(nftables.family)
        transaction.add(nft.DELTABLE, nft.table_body(TABLE_NAME), f"table {TABLE_NAME}")
        # Another process may have deleted the table since it was listed.
        refusals = [r for r in nftables.commit(transaction) if r.errno != errno.ENOENT]
        raise_refusals(refusals)
