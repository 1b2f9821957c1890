"""Which service port a rule in one of our chains belongs to. Pure.

After a restart our rules are recognised by the comment that each of them has. A rule without one
makes its chain unknown, and the whole chain is written again.
"""

from __future__ import annotations

from kubeproxy.modes.netfilter.items import Order
from kubeproxy.modes.netfilter.rules.comments import service_port_of


def identify(_table: str, _chain: str, line: str) -> Order | None:
    """The section of a rule line as iptables-save prints it, or None if it is not ours."""
    key = service_port_of(line)
    return None if key is None else (0, key)
