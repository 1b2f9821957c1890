"""Can this mode run here? Checks the kernel's release, and tries what we need in a dry run.

The dry run has a rule for each feature that is a module of its own, so that the kernel's refusal
names what is missing.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Sequence

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import Nftables, raise_refusals
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.items import Chain, ChainKind
from kubeproxy.modes.nftables.names import (
    BASE_CHAINS,
    TABLE_COMMENT,
    TABLE_NAME,
    FamilyLayout,
    layout_of,
)
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.rules import pieces
from kubeproxy.modes.nftables.rules.pieces import Draw, Piece

OLDEST_KERNEL = (5, 13)
_PREFIX = "check-"
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
        raise Unsupported(
            "kube-proxy in nftables mode requires kernel 5.13 or later, and this one is "
            f"{release}: use --proxy-mode=iptables"
        )


def _dry_run(family: Family) -> None:
    """Let the kernel try a table with every kind of chain, set and expression, and keep nothing."""
    try:
        with Nftables(layout_of(family).number) as nftables:
            transaction = nft.Transaction(nftables.family)
            body = nft.table_body(TABLE_NAME, TABLE_COMMENT)
            transaction.add(nft.NEWTABLE, body, f"table {TABLE_NAME}", nft.CREATE)
            raise_refusals(nftables.check(transaction))
            _add_features(transaction, layout_of(family))
            require_features(nftables.check(transaction))
    except KernelError as error:
        raise Unsupported(f"nftables cannot be used for {family.value}: {error}") from error


def _add_features(transaction: nft.Transaction, layout: FamilyLayout) -> None:
    """Add a chain and a rule per feature, labelled with it."""
    tcp, address = Protocol.TCP.number, bytes(layout.address_length)
    features: tuple[tuple[str, Piece], ...] = (
        ("connection tracking (nft_ct)", pieces.status_dnat()),
        ("address types (nft_fib)", pieces.is_destination_local()),
        ("random numbers (nft_numgen)", pieces.drawn_is(layout, Draw.PICK, 2)),
        ("translation of addresses (nft_nat)", pieces.dnat_to(layout, tcp, address, 80)),
        ("masquerading (nft_masq)", pieces.masquerade()),
        ("rejecting (nft_reject)", pieces.reject(layout)),
    )
    translating = Chain(ChainKind.BASE, hook=BASE_CHAINS["nat-prerouting"])
    body = codec.chain_body(f"{_PREFIX}nat", translating)
    transaction.add(nft.NEWCHAIN, body, "chains that translate (nft_chain_nat)", nft.CREATE)
    for number, (feature, piece) in enumerate(features):
        chain = f"{_PREFIX}{number}"
        body = codec.chain_body(chain, Chain(ChainKind.SCAFFOLD))
        transaction.add(nft.NEWCHAIN, body, f"chain {chain}", nft.CREATE)
        body = codec.rule_body(chain, pieces.rule(piece))
        transaction.add(nft.NEWRULE, body, feature, nft.APPEND)


def require_features(refusals: Sequence[nft.Refusal]) -> None:
    """Raise Unsupported that names every feature the kernel has refused."""
    if refusals:
        missing = ", ".join(dict.fromkeys(refusal.label for refusal in refusals))
        raise Unsupported(
            f"the kernel has no {missing} for nf_tables: install or load the kernel modules in "
            f"brackets ({refusals[0].text})"
        )
