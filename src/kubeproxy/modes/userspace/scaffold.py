"""What exists with no service at all: the portal chains and the rules that lead to them.

The first five are v1.25's, in its order. `KUBE-PORTALS-FILTER` is ours: it answers for frontends
that have no portal, because nobody serves them or because the client is not let in.
"""

from __future__ import annotations

import re

from kubeproxy.modes.base import Item, Value
from kubeproxy.modes.netfilter.items import ChainState, Jump, Order, Position, Scope, SharedChain

PORTALS_CONTAINER = "KUBE-PORTALS-CONTAINER"
PORTALS_HOST = "KUBE-PORTALS-HOST"
NODE_PORT_CONTAINER = "KUBE-NODEPORT-CONTAINER"
NODE_PORT_HOST = "KUBE-NODEPORT-HOST"
NODE_PORT_NON_LOCAL = "KUBE-NODEPORT-NON-LOCAL"
PORTALS_FILTER = "KUBE-PORTALS-FILTER"

NAT_CHAINS = (PORTALS_CONTAINER, PORTALS_HOST, NODE_PORT_CONTAINER, NODE_PORT_HOST)
FILTER_CHAINS = (NODE_PORT_NON_LOCAL, PORTALS_FILTER)

_VIPS_FIRST = "handle ClusterIPs; NOTE: this must be before the NodePort rules"
_NODE_PORTS_LAST = "handle service NodePorts; NOTE: this must be the last rule in the chain"
_NON_LOCAL = "Ensure that non-local NodePort traffic can flow"
_UNSERVED = "kubernetes service portals that are not served"
_LOCAL = "-m addrtype --dst-type LOCAL "
_NEW = "-m conntrack --ctstate NEW "

_JUMPS = (
    ("nat", "PREROUTING", "", _VIPS_FIRST, PORTALS_CONTAINER, Position.FIRST),
    ("nat", "OUTPUT", "", _VIPS_FIRST, PORTALS_HOST, Position.FIRST),
    ("nat", "PREROUTING", _LOCAL, _NODE_PORTS_LAST, NODE_PORT_CONTAINER, Position.LAST),
    ("nat", "OUTPUT", _LOCAL, _NODE_PORTS_LAST, NODE_PORT_HOST, Position.LAST),
    ("filter", "INPUT", "", _NON_LOCAL, NODE_PORT_NON_LOCAL, Position.FIRST),
    ("filter", "INPUT", _NEW, _UNSERVED, PORTALS_FILTER, Position.FIRST),
    ("filter", "FORWARD", _NEW, _UNSERVED, PORTALS_FILTER, Position.FIRST),
    ("filter", "OUTPUT", _NEW, _UNSERVED, PORTALS_FILTER, Position.FIRST),
)  # fmt: skip

_COMMENT = re.compile(r'--comment (?:"([^"]*)"|(\S+))')
_PROTOCOL = re.compile(r"(?<= )-p (\S+)")


def identify(_table: str, _chain: str, line: str) -> Order | None:
    """Whose rule this is: every rule of ours carries its service port's name as comment."""
    comment, protocol = _COMMENT.search(line), _PROTOCOL.search(line)
    if comment is None or protocol is None:
        return None
    namespace, slash, rest = (comment[1] or comment[2]).partition("/")
    name, _, port = rest.partition(":")
    return (0, (namespace, name, port, protocol[1].upper())) if slash else None


SCOPE = Scope(
    tables=("nat", "filter"),
    chains={},
    shared_chains={"nat": frozenset(NAT_CHAINS), "filter": frozenset(FILTER_CHAINS)},
    prefixes={},
    jumps=tuple(
        (Jump(table, chain, f'{match}-m comment --comment "{comment}" -j {target}'), position)
        for table, chain, match, comment, target, position in _JUMPS
    ),
    identify=identify,
)


def scaffold_items() -> dict[Item, Value]:
    items: dict[Item, Value] = {}
    for table, chains in (("nat", NAT_CHAINS), ("filter", FILTER_CHAINS)):
        for chain in chains:
            items[SharedChain(table, chain)] = ChainState.KNOWN
    return items | dict(SCOPE.jumps)
