"""Find the variant of iptables the node uses, once at start, and log the choice with its reason.

Promise: looking changes nothing. The kubelet's hint is looked for without any tool, and the legacy
tool, which creates the tables it lists, is only run where legacy tables exist. Leaves to others:
the rules of the choice (`rules/variant`).
"""

from __future__ import annotations

from collections.abc import Iterable

from kubeproxy.config.flags import Extensions
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.exec import run_tool
from kubeproxy.logs import get_logger
from kubeproxy.modes.netfilter.options import VARIANT_FLAG
from kubeproxy.modes.netfilter.rules.variant import (
    AUTO,
    HINTS,
    LEGACY,
    NFT,
    Choice,
    choose_by_hint,
    choose_by_rules,
    count_rules,
)
from kubeproxy.modes.netfilter.sinks.chains import find_chains, has_legacy_tables
from kubeproxy.modes.netfilter.sinks.tools import programs
from kubeproxy.modes.netfilter.sinks.versions import version_of

logger = get_logger(__name__)


async def resolve_variant(extensions: Extensions) -> Extensions:
    """Replace `auto` by the variant that the node uses."""
    wanted = extensions.text(VARIANT_FLAG)
    choice = await find_variant() if wanted == AUTO else Choice(wanted, f"--{VARIANT_FLAG}")
    shown = choice.variant or await _default_variant()
    logger.info("Using iptables variant", variant=shown, reason=choice.reason)
    return Extensions({**extensions.values, VARIANT_FLAG: choice.variant})


async def find_variant() -> Choice:
    """Look for the kubelet's hint, then for rules, in both variants and both families."""
    hinted = choose_by_hint(nft=_is_hinted(is_nft=True), legacy=_is_hinted(is_nft=False))
    if hinted is not None:
        return hinted
    legacy = count_rules(await _save_legacy())
    # Counting a large cluster's rules takes seconds: not where the answer changes nothing.
    nft = count_rules(await _save(NFT)) if legacy else 0
    return choose_by_rules(nft=nft, legacy=legacy)


def _is_hinted(*, is_nft: bool) -> bool:
    """Did the kubelet leave its hint in the tables of a variant? One that fails shows nothing."""
    try:
        return any(find_chains(family, "mangle", HINTS, is_nft=is_nft) for family in Family)
    except KernelError:
        return False


async def variants_in_use(family: Family) -> list[str]:
    """What the plain name means, and the other variant if that has tables too."""
    default = await _default_variant()
    if default == NFT and _may_have_legacy(family):
        return ["", LEGACY]
    if default == LEGACY and await _save(NFT, families=[family]):
        return ["", NFT]
    return [""]


async def variant_name(*, is_nft: bool) -> str:
    """The variant to insist on to see these tables; empty if the plain name does."""
    wanted = NFT if is_nft else LEGACY
    return "" if await _default_variant() == wanted else wanted


async def saved_rules() -> dict[str, str]:
    """What both variants hold, in both families, by variant."""
    return {NFT: await _save(NFT), LEGACY: await _save_legacy()}


async def _save_legacy() -> str:
    return await _save(LEGACY, families=filter(_may_have_legacy, Family))


def _may_have_legacy(family: Family) -> bool:
    """Are there legacy tables? If that cannot be found out, the tools show it."""
    try:
        return has_legacy_tables(family)
    except KernelError:
        return True


async def _save(variant: str, *, families: Iterable[Family] = Family) -> str:
    """The tables of these families. A tool that is missing or fails has nothing to show."""
    saved = []
    for family in families:
        try:
            done = await run_tool([programs(family, variant).save])
        except KernelError:
            continue
        saved.append(done.stdout if done.is_success else "")
    return "".join(saved)


async def _default_variant() -> str:
    try:
        version = await version_of(programs(Family.IPV4).command)
    except KernelError:
        return ""
    return NFT if version.is_nft else LEGACY
