"""Which service port a rule in one of our shared chains belongs to. Pure.

After a restart this is how we know our own rules again: by the comment that every one of them
carries. A rule that says nothing makes its chain unknown, and the chain is written anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kubeproxy.modes.iptables import names
from kubeproxy.modes.netfilter.items import Order

_OF_POOLS = ("KUBE-SVC-", "KUBE-SVL-")
_OF_SERVICES = (*_OF_POOLS, "KUBE-EXT-", "KUBE-FW-")
_ALL = names.SERVICE_CHAIN_PREFIXES

_COMMENT = re.compile(r'--comment (?:"([^"]*)"|(\S+))')
_PROTOCOL = re.compile(r"(?<= )-p (\S+)")
_LAST_COMMENT = names.NODE_PORTS_LAST.strip('"')


def identify(table: str, chain: str, line: str) -> Order | None:
    """The section of a rule line as iptables-save prints it."""
    found = _COMMENT.search(line)
    if found is None:
        return None
    comment = found[1] or found[2]
    if comment == _LAST_COMMENT:
        return (1, ())
    namespace, slash, rest = comment.partition(" ")[0].partition("/")
    protocol = _PROTOCOL.search(line)
    if not slash or protocol is None:
        return None
    name, _, port = rest.partition(":")
    return (0, (namespace, name, port, protocol[1].upper()))


def group(chains: Mapping[str, str]) -> dict[str, str]:
    """The service chains of a table, by the hash that those of one service port share.

    Endpoint chains have hashes of their own and go with the chain that leads to them; one that
    nothing leads to is of no group, hence nobody's, and will be removed.
    """
    found: dict[str, str] = {}
    for chain, text in chains.items():
        if not chain.startswith(_OF_SERVICES):
            continue
        name = chain.rpartition("-")[2]
        found[chain] = name
        if chain.startswith(_OF_POOLS):
            targets = (line.rpartition(" -j ")[2] for line in text.splitlines())
            found |= {target: name for target in targets if target in chains}
    return {chain: name for chain, name in found.items() if chain.startswith(_ALL)}
