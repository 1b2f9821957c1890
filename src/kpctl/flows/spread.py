"""A chi-square test of whether a choice keeps its shares, with a stated rate of false alarms.

Pure. `FALSE_ALARM` is the chance that one call reports a choice with just these shares.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

FALSE_ALARM = 1e-6


def chi_square_tail(statistic: float, freedom: int) -> float:
    """The chance that a chi-square variable is at least this large."""
    if statistic <= 0:
        return 1.0
    half = statistic / 2
    if freedom % 2:
        tail, order = math.erfc(math.sqrt(half)), 0.5
    else:
        tail, order = math.exp(-half), 1.0
    while order < freedom / 2:
        # Q(a + 1, x) = Q(a, x) + x^a e^-x / Γ(a + 1)
        tail += math.exp(order * math.log(half) - half - math.lgamma(order + 1))
        order += 1
    return min(tail, 1.0)


def unevenness(
    counts: Mapping[str, int], names: Collection[str], weights: Mapping[str, int] | None = None
) -> str:
    """Why these counts cannot come from a choice among the names. Empty if they can.

    Each name has the share of its weight, and the same share as the others without weights.
    """
    total = sum(counts.values())
    shares = {name: (weights or {}).get(name, 1) for name in names}
    whole = sum(shares.values())
    statistic = sum(
        (counts.get(name, 0) - total * share / whole) ** 2 / (total * share / whole)
        for name, share in shares.items()
    )
    chance = chi_square_tail(statistic, len(names) - 1)
    if chance >= FALSE_ALARM:
        return ""
    shown = ", ".join(f"{name} {counts.get(name, 0)}" for name in sorted(names))
    return f"{total} answers spread unevenly ({shown}); chance alone: {chance:.1e}"
