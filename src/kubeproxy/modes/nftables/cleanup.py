"""Removes everything this mode ever put into the kernel: its table in both families.

Whose table it is does not matter: upstream's has the same name and is removed the same way.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import NftSocket, raise_refusals
from kubeproxy.modes.nftables.names import TABLE_NAME, layout_of

_UNUSABLE = frozenset((errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.EAFNOSUPPORT))
"""nf_tables, or the family, is not in this kernel: there is nothing to remove."""


async def cleanup() -> Sequence[str]:
    """Delete our tables in the current network namespace; what went wrong, in words."""
    problems = []
    for family in Family:
        try:
            _delete_table(family)
        except KernelError as error:
            if error.errno not in _UNUSABLE:
                problems.append(f"{family.value} table {TABLE_NAME}: {error}")
    return problems


def _delete_table(family: Family) -> None:
    with NftSocket(layout_of(family).number) as handle:
        if not any(table.name == TABLE_NAME for table in handle.tables()):
            return
        batch = nft.Batch(handle.family)
        batch.add(nft.DELTABLE, nft.table_body(TABLE_NAME), f"table {TABLE_NAME}")
        refusals = [r for r in handle.commit(batch) if r.errno != errno.ENOENT]
        raise_refusals(refusals)
