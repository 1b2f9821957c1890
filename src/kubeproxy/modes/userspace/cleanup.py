"""Remove everything of the userspace mode, and nothing else.

Only rules outlive the process. Sockets are closed with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.modes.netfilter.cleanup import Removal, clean_families, removal_input
from kubeproxy.modes.netfilter.rules.text import TableText
from kubeproxy.modes.userspace.scaffold import SCOPE


def cleanup_input(table: TableText) -> str:
    """Restore input that removes what is ours in a table; empty if nothing is."""
    chains = sorted(chain for chain in table.policies if SCOPE.shares(table.name, chain))
    return removal_input(table, chains, [jump for jump, _ in SCOPE.jumps])


async def cleanup() -> Sequence[str]:
    """Clean both families as far as their tools are installed. Return a text for each problem."""
    return await clean_families(Removal(SCOPE.tables, cleanup_input))
