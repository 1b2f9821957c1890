"""Which variant of iptables to use: nft or legacy. Pure.

The two keep their rules apart, and the kernel obeys both. A proxy that writes to another variant
than the rest of the node makes a second rule set that the node's tools do not show. So the choice
follows the node, by the rules of upstream's image: the kubelet's hint chain, else more rules.
"""

from __future__ import annotations

from msgspec import Struct

NFT, LEGACY, AUTO = "nft", "legacy", "auto"
VARIANTS = (AUTO, NFT, LEGACY)

HINTS = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
"""Chains in the mangle table that the kubelet makes for this purpose."""


class Choice(Struct, frozen=True, gc=False):
    """The variant, empty for what the plain name `iptables` means here, and why."""

    variant: str
    reason: str


def count_rules(saved: str) -> int:
    """The number of rules in saved tables."""
    return sum(line.startswith("-") for line in saved.splitlines())


def choose_by_hint(*, nft: bool, legacy: bool) -> Choice | None:
    """The variant in which the kubelet left its hint, nft first. None without a hint."""
    for variant, is_hinted in ((NFT, nft), (LEGACY, legacy)):
        if is_hinted:
            return Choice(variant, "the kubelet's hint chain is in its mangle table")
    return None


def choose_by_rules(*, nft: int, legacy: int) -> Choice:
    """The variant with more rules; with as many in both, the host's own default.

    In our image that is nft, as in upstream's. On a host it is what its administrator chose.
    """
    counts = f"{nft} rules in nft, {legacy} in legacy, no hint of the kubelet"
    if nft == legacy:
        return Choice("", f"{counts}: the default of this host")
    return Choice(LEGACY if legacy > nft else NFT, counts)
