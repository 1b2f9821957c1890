"""Can this mode run here? Checks the kernel's release, and tries to make our table in a dry run."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import Nftables, raise_refusals
from kubeproxy.modes.nftables.names import TABLE_COMMENT, TABLE_NAME, layout_of
from kubeproxy.modes.nftables.options import Options

OLDEST_KERNEL = (5, 13)
SKIP_VARIABLE = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"


async def check(families: Collection[Family], options: Options) -> None:
    """Raise Unsupported with the reason if the mode cannot run on this host."""
    if not os.environ.get(SKIP_VARIABLE):
        require_kernel(platform.release())
    for family in families:
        _dry_run(family)


def require_kernel(release: str) -> None:
    """Raise Unsupported if the kernel is older than the first one that has all we use."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_KERNEL:
        raise Unsupported("kube-proxy in nftables mode requires kernel 5.13 or later")


def _dry_run(family: Family) -> None:
    try:
        with Nftables(layout_of(family).number) as nftables:
            transaction = nft.Transaction(nftables.family)
            body = nft.table_body(TABLE_NAME, TABLE_COMMENT)
            transaction.add(nft.NEWTABLE, body, f"table {TABLE_NAME}", nft.CREATE)
            raise_refusals(nftables.check(transaction))
    except KernelError as error:
        raise Unsupported(f"nftables cannot be used for {family.value}: {error}") from error
