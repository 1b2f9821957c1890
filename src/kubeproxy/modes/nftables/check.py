"""Can this mode run here? The kernel's release, and a dry run of what we would do first."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import NftSocket, raise_refusals
from kubeproxy.modes.base import ModeOptions
from kubeproxy.modes.nftables.names import TABLE_COMMENT, TABLE_NAME, layout_of

OLDEST_KERNEL = (5, 13)
SKIP_VARIABLE = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"


async def check(families: Collection[Family], options: ModeOptions) -> None:
    """Raise Unsupported with the reason if the mode cannot run on this host."""
    if not os.environ.get(SKIP_VARIABLE):
        require_kernel(platform.release())
    for family in families:
        _dry_run(family)


def require_kernel(release: str) -> None:
    """The oldest kernel that has all we use."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_KERNEL:
        raise Unsupported("kube-proxy in nftables mode requires kernel 5.13 or later")


def _dry_run(family: Family) -> None:
    try:
        with NftSocket(layout_of(family).number) as handle:
            batch = nft.Batch(handle.family)
            body = nft.table_body(TABLE_NAME, TABLE_COMMENT)
            batch.add(nft.NEWTABLE, body, f"table {TABLE_NAME}", nft.CREATE)
            raise_refusals(handle.check(batch))
    except KernelError as error:
        raise Unsupported(f"nftables cannot be used for {family.value}: {error}") from error
