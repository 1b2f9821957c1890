"""One service port as chains and rules, the way upstream writes them. Pure.

The plan has decided everything that is the same in all modes; here it becomes text.
"""

from __future__ import annotations

from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.iptables.items import Fragment, Item, Value
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.iptables.rules.chains import chains
from kubeproxy.modes.iptables.rules.context import context_of
from kubeproxy.modes.iptables.rules.sections import sections
from kubeproxy.plan.types import ServicePlan


def render(plan: ServicePlan, node: NodeFacts, options: Options) -> Fragment:
    """The items one service port wants: sections in shared chains, and its own chains."""
    context = context_of(plan, node, options)
    items: dict[Item, Value] = {}
    items.update(sections(context).items())
    items.update(chains(context).items())
    return items
