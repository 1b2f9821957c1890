"""Which iptables programs there are, and which options their version understands. Pure.

An option that a program does not know makes the whole call fail, so the version decides.
"""

from __future__ import annotations

import re

from msgspec import Struct

from kubeproxy.facts.ids import Family

_VERSION = re.compile(r"v([0-9]+(?:\.[0-9]+)+)")

_WAIT = (1, 4, 20)  # iptables -w, which waits for ever
_WAIT_SECONDS = (1, 4, 22)  # iptables -w SECONDS
_RESTORE_WAIT = (1, 6, 2)  # iptables-restore -w SECONDS
_RANDOM_FULLY = (1, 6, 2)  # -j MASQUERADE --random-fully


class Programs(Struct, frozen=True, gc=False):
    """The three programs of one family."""

    command: str
    save: str
    restore: str


def programs(family: Family, variant: str = "") -> Programs:
    """The programs as found through PATH; `variant` is "legacy" or "nft" to insist on one."""
    base = "iptables" if family is Family.IPV4 else "ip6tables"
    name = f"{base}-{variant}" if variant else base
    return Programs(command=name, save=f"{name}-save", restore=f"{name}-restore")


class Version(Struct, frozen=True, gc=False):
    """A probed version; the number is (0,) if the tool printed none."""

    number: tuple[int, ...] = (0,)
    is_nft: bool = False

    @property
    def has_random_fully(self) -> bool:
        return self.number >= _RANDOM_FULLY

    @property
    def restore_waits(self) -> bool:
        """Does the restore of this version wait for the lock as long as it is asked to?"""
        return self.number >= _RESTORE_WAIT


def parse_version(output: str) -> Version:
    """`iptables v1.8.9 (nf_tables)` → its number and kind."""
    found = _VERSION.search(output)
    if not found:
        return Version()
    return Version(tuple(map(int, found[1].split("."))), is_nft="(nf_tables)" in output)


def command_wait_flags(version: Version, timeout_seconds: float) -> tuple[str, ...]:
    """The options that make `iptables` wait for the xtables lock."""
    if version.number >= _WAIT_SECONDS:
        return ("-w", f"{max(round(timeout_seconds), 1)}")
    return ("-w",) if version.number >= _WAIT else ()


def restore_wait_flags(
    version: Version, timeout_seconds: float, *, understands_version: bool
) -> tuple[str, ...]:
    """The options that make `iptables-restore` wait; none means we must hold the lock ourselves.

    Distributions back-ported `-w` without a number to versions before 1.6.2, together with
    `--version`, so a restore that understands the one understands the other.
    """
    if version.restore_waits:
        return ("-w", f"{max(round(timeout_seconds), 1)}")
    return ("-w",) if understands_version else ()
