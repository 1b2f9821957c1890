"""Packets that are refused, by service port, from the counters of sets and rules. Pure.

IPVS refuses a packet for which it has no real server, and counts none of them. So where counting is
asked for, such places are in a set with counters, which a rule without a target matches before IPVS
sees the packet. Sources outside the ranges of a Service are counted in the same way, and what the
node itself may not reach by the rule that drops it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kubeproxy.facts.ids import Protocol
from kubeproxy.kernel.ipset.wire import Entry
from kubeproxy.modes.base import (
    NO_ENDPOINTS,
    OUTSIDE_SOURCE_RANGES,
    REFUSED_BY_ANNOTATION,
    RefusedPackets,
)
from kubeproxy.modes.ipvs.names import IPVS_OUT_FILTER, SetName
from kubeproxy.plan.conntrack import pack_socket
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.types import ServicePlan, Verdict

REASONS = {
    SetName.NO_ENDPOINTS: (Verdict.REJECT, NO_ENDPOINTS),
    SetName.SOURCE_REFUSED: (Verdict.DROP, OUTSIDE_SOURCE_RANGES),
    SetName.GUARD_REFUSED: (Verdict.DROP, REFUSED_BY_ANNOTATION),
}
"""What is done to the packets that a set counts, and why."""

_PROTOCOLS = {protocol.number: protocol for protocol in Protocol}
_OUT_FILTER = re.compile(
    rf"\[(\d+):\d+\] -A {IPVS_OUT_FILTER} .*--vproto (\d+) --vaddr (\S+) --vport (\d+) -j DROP"
)


def refused_in_set(
    name: SetName, counted: Mapping[Entry, int], frontends: Frontends
) -> Iterator[RefusedPackets]:
    """What the entries of one set have counted, of service ports that still exist."""
    for entry, packets in counted.items():
        place = (entry.protocol, entry.address, entry.port)
        yield from _refused(name, place, packets, frontends)


def refused_by_out_filter(saved: str, frontends: Frontends) -> Iterator[RefusedPackets]:
    """What the node itself tried in vain, from the output of `iptables-save -c`."""
    for packets, protocol, address, port in _OUT_FILTER.findall(saved):
        place = (int(protocol), address.partition("/")[0], int(port))
        yield from _refused(None, place, int(packets), frontends)


def _refused(
    name: SetName | None, place: tuple[int, str, int], packets: int, frontends: Frontends
) -> Iterator[RefusedPackets]:
    number, address, port = place
    protocol = _PROTOCOLS.get(number)
    plan = frontends.find(protocol, pack_socket(address, port)) if protocol else None
    if plan is not None and packets:
        action, reason = REASONS[name or _refused_to_node(plan, address)]
        yield RefusedPackets(plan.id, action.value, reason, packets)


def _refused_to_node(plan: ServicePlan, address: str) -> SetName:
    """Which restriction keeps the node itself out."""
    by_ranges = (
        f.source_ranges and not f.vip_sources for f in plan.frontends if f.address == address
    )
    return SetName.SOURCE_REFUSED if any(by_ranges) else SetName.GUARD_REFUSED
