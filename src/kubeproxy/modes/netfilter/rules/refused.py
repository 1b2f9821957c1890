"""Packets that rules of ours refused, from a saved table with its counters. Pure.

    [12:720] -A KUBE-SERVICES ... --comment "shop/web:http has no endpoints" ... -j REJECT ...

The kernel counts packets per rule in any case, so nothing is added to the rules for this.
"""

from __future__ import annotations

import re

from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.modes.base import OUTSIDE_SOURCE_RANGES, RefusedPackets
from kubeproxy.modes.netfilter.rules.comments import comment_of, service_port_of

TABLE = "filter"
_FIREWALLED = "traffic not accepted by "
"""Upstream's words, which go on with the name of a chain."""
_RULE = re.compile(r"\[(\d+):\d+\] (-A KUBE-.* -j (REJECT|DROP)\b.*)")


def parse_refused(saved: str) -> list[RefusedPackets]:
    """The refusing rules of service ports in the output of `iptables-save -c`."""
    found = []
    for packets, rule, action in _RULE.findall(saved):
        key, comment = service_port_of(rule), comment_of(rule)
        if key is None or comment is None or key[3] not in Protocol.__members__:
            continue
        owner = ServicePortId(key[0], key[1], key[2], Protocol(key[3]))
        reason = comment.partition(" ")[2]
        if reason.startswith(_FIREWALLED):
            reason = OUTSIDE_SOURCE_RANGES
        found.append(RefusedPackets(owner, action.lower(), reason, int(packets)))
    return found
