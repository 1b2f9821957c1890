"""Remove everything of the userspace mode, and nothing else.

Only rules outlive the process. Sockets are closed with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.modes.base import Retired, Running
from kubeproxy.modes.netfilter.cleanup import Removal, clean_families, retire_rules
from kubeproxy.modes.netfilter.rules.text import TableText
from kubeproxy.modes.userspace.scaffold import SCOPE


def own_chains(table: TableText) -> list[str]:
    return sorted(chain for chain in table.policies if SCOPE.shares(table.name, chain))


REMOVAL = Removal("userspace", SCOPE.tables, own_chains, tuple(jump for jump, _ in SCOPE.jumps))


async def cleanup() -> Sequence[str]:
    """Clean both families as far as their tools are installed. Return a text for each problem."""
    return await clean_families(REMOVAL)


async def retire(running: Running) -> Retired:
    """Remove the rules. Open connections go on as long as the process that carries them."""
    return Retired(tuple(await retire_rules(REMOVAL, running)))
