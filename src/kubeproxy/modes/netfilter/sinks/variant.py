"""Find the variant of iptables the node uses, once at start, and log the choice with its reason.

Promise: looking changes nothing. The legacy tool creates the tables it lists, so it is only run
where legacy tables exist. Leaves to others: the rules of the choice (`rules/variant`).
"""

from __future__ import annotations

from pathlib import Path

from kubeproxy.config.flags import Extensions
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.exec import run_tool
from kubeproxy.logs import get_logger
from kubeproxy.modes.netfilter.options import VARIANT_FLAG
from kubeproxy.modes.netfilter.rules.variant import (
    AUTO,
    LEGACY,
    NFT,
    Choice,
    choose_by_hint,
    choose_by_rules,
    count_rules,
    has_hint,
)
from kubeproxy.modes.netfilter.sinks.tools import programs

logger = get_logger(__name__)

_LEGACY_TABLES = {Family.IPV4: "ip_tables_names", Family.IPV6: "ip6_tables_names"}


async def resolve_variant(extensions: Extensions) -> Extensions:
    """Replace `auto` by the variant that the node uses."""
    wanted = extensions.text(VARIANT_FLAG)
    choice = await find_variant() if wanted == AUTO else Choice(wanted, f"--{VARIANT_FLAG}")
    shown = choice.variant or await _default_variant()
    logger.info("Using iptables variant", variant=shown, reason=choice.reason)
    return Extensions({**extensions.values, VARIANT_FLAG: choice.variant})


async def find_variant() -> Choice:
    """Look for the kubelet's hint, then for rules, in both variants and both families."""
    hinted = choose_by_hint(
        nft=has_hint(await _save(NFT, "mangle")), legacy=has_hint(await _save_legacy("mangle"))
    )
    if hinted is not None:
        return hinted
    legacy = count_rules(await _save_legacy())
    # Counting a large cluster's rules takes seconds: not where the answer changes nothing.
    nft = count_rules(await _save(NFT)) if legacy else 0
    return choose_by_rules(nft=nft, legacy=legacy)


def has_legacy_tables(family: Family, table: str = "") -> bool:
    """Does this network namespace have legacy tables, or this one?"""
    try:
        names = Path("/proc/thread-self/net", _LEGACY_TABLES[family]).read_text().split()
    except OSError:
        return False  # not without the kernel module
    return table in names if table else bool(names)


async def variants_in_use(family: Family) -> list[str]:
    """What the plain name means, and the other variant if that has tables too."""
    default = await _default_variant()
    if default == NFT and has_legacy_tables(family):
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


async def _save_legacy(table: str = "") -> str:
    families = [family for family in Family if has_legacy_tables(family, table)]
    return await _save(LEGACY, table, families=families)


async def _save(variant: str, table: str = "", *, families: list[Family] | None = None) -> str:
    """The tables of both families. A tool that is missing or fails has nothing to show."""
    saved = []
    for family in Family if families is None else families:
        argv = [programs(family, variant).save, *(["-t", table] if table else [])]
        try:
            done = await run_tool(argv)
        except KernelError:
            continue
        saved.append(done.stdout if done.is_success else "")
    return "".join(saved)


async def _default_variant() -> str:
    try:
        done = await run_tool([programs(Family.IPV4).command, "--version"])
    except KernelError:
        return ""
    return NFT if "nf_tables" in done.output else LEGACY
