"""What exists with no service at all: the portal chains and the jumps that lead to them. Pure.

The first five jumps are v1.25's, in its order. `KUBE-PORTALS-FILTER` is an addition: it rejects or
drops traffic to frontends that have no portal, because no endpoint serves them or because the
client is not among the allowed sources.
"""

from __future__ import annotations

from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.netfilter.items import KNOWN, Jump, Position, Scope, SharedChain
from kubeproxy.modes.userspace import names
from kubeproxy.modes.userspace.items import Fragment, Item, Value
from kubeproxy.modes.userspace.options import Options
from kubeproxy.modes.userspace.rules.recognise import identify

_VIPS_FIRST = "handle ClusterIPs; NOTE: this must be before the NodePort rules"
_NODE_PORTS_LAST = "handle service NodePorts; NOTE: this must be the last rule in the chain"
_NON_LOCAL = "Ensure that non-local NodePort traffic can flow"
_UNSERVED = "kubernetes service portals that are not served"
_LOCAL = "-m addrtype --dst-type LOCAL "
_NEW = "-m conntrack --ctstate NEW "

_JUMPS = (
    ("nat", "PREROUTING", "", _VIPS_FIRST, names.PORTALS_CONTAINER, Position.FIRST),
    ("nat", "OUTPUT", "", _VIPS_FIRST, names.PORTALS_HOST, Position.FIRST),
    ("nat", "PREROUTING", _LOCAL, _NODE_PORTS_LAST, names.NODE_PORT_CONTAINER, Position.LAST),
    ("nat", "OUTPUT", _LOCAL, _NODE_PORTS_LAST, names.NODE_PORT_HOST, Position.LAST),
    ("filter", "INPUT", "", _NON_LOCAL, names.NODE_PORT_NON_LOCAL, Position.FIRST),
    ("filter", "INPUT", _NEW, _UNSERVED, names.PORTALS_FILTER, Position.FIRST),
    ("filter", "FORWARD", _NEW, _UNSERVED, names.PORTALS_FILTER, Position.FIRST),
    ("filter", "OUTPUT", _NEW, _UNSERVED, names.PORTALS_FILTER, Position.FIRST),
)  # fmt: skip

SCOPE = Scope(
    tables=tuple(names.CHAINS),
    chains={},
    shared_chains={table: frozenset(chains) for table, chains in names.CHAINS.items()},
    prefixes={},
    jumps=tuple(
        (Jump(table, chain, f'{match}-m comment --comment "{comment}" -j {target}'), position)
        for table, chain, match, comment, target, position in _JUMPS
    ),
    identify=identify,
    mode="userspace",
)


def scaffold(_node: NodeFacts, _options: Options) -> Fragment:
    """All chains and jumps, which are the same on every node."""
    items: dict[Item, Value] = {}
    for table, chains in names.CHAINS.items():
        for chain in chains:
            items[SharedChain(table, chain)] = KNOWN
    return items | dict(SCOPE.jumps)
