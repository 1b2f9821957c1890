"""Which of our rules a rule in one of our shared chains is. Pure.

After a restart this is how we know our own rules again: by the set they match and the target they
lead to, whatever the configuration was when they were written. A rule that is not recognised makes
its chain unknown, and the chain is written as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kubeproxy.modes.ipvs.names import IPVS_OUT_FILTER
from kubeproxy.modes.ipvs.rules.sets import SectionRules
from kubeproxy.modes.netfilter.items import Identify, Order

_SET = re.compile(r"--match-set (\S+) ")
_TARGET = re.compile(r"-j (\S+)")
_OUT_FILTER = re.compile(r"--vproto (\d+) --vaddr (\S+) --vport (\d+) ")


def recogniser(known: Iterable[SectionRules]) -> Identify:
    """A function that finds the section of a rule among the known ones, or of an out-filter."""
    orders = {
        (section.table, section.chain, *_signature(line)): section.order
        for sections in known
        for section, held in sections.items()
        for line in held.lines()
    }

    def identify(table: str, chain: str, line: str) -> Order | None:
        if chain == IPVS_OUT_FILTER:
            found = _OUT_FILTER.search(line)
            return (0, (found[2], found[1], f"{int(found[3]):05}")) if found else None
        return orders.get((table, chain, *_signature(line)))

    return identify


def _signature(line: str) -> tuple[str, str]:
    """The set a rule matches and its target: enough to know which of ours it is."""
    matched, target = _SET.search(line), _TARGET.search(line)
    return (matched[1] if matched else "", target[1] if target else "")
