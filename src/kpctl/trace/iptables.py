"""Follows a packet through the items of the iptables mode, without a kernel. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kpctl.trace.matches import Context
from kpctl.trace.rules import RuleTracer, rules_of_items
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import AnyItem


class ItemTracer(RuleTracer):
    """Traces packets of one node and one family through the items a sink holds or wants."""

    def __init__(self, items: Mapping[AnyItem, object], node: NodeFacts) -> None:
        super().__init__(rules_of_items(items), Context(frozenset(node.addresses), node.ip))
