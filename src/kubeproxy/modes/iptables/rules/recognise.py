"""Which service port a rule or chain in the kernel belongs to. Pure.

After a restart this is how we know our own rules again: by the comment that each of them has, and
by the hash that the chains of one service port share. A rule without such a comment makes its
chain unknown, and the chain is rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeproxy.modes.iptables import names
from kubeproxy.modes.netfilter.items import Order
from kubeproxy.modes.netfilter.rules.comments import comment_of, service_port_of

_LAST_COMMENT = names.NODE_PORTS_LAST.strip('"')


def identify(_table: str, _chain: str, line: str) -> Order | None:
    """The section of a rule line as iptables-save prints it."""
    if comment_of(line) == _LAST_COMMENT:
        return (names.LAST, ())
    key = service_port_of(line)
    return None if key is None else (names.AMONG_SERVICES, key)


def group(chains: Mapping[str, str]) -> dict[str, str]:
    """The service chains of a table, by the hash that those of one service port share.

    Endpoint chains have hashes of their own and go with the chain that leads to them. One that
    nothing leads to is of no group, hence of no owner, and will be removed.
    """
    found: dict[str, str] = {}
    for chain, text in chains.items():
        if not chain.startswith(names.PORT_CHAIN_PREFIXES):
            continue
        name = chain.rpartition("-")[2]
        found[chain] = name
        # A chain that another program renamed leads to endpoints of a chain that is there again.
        if chain.startswith(names.POOL_CHAIN_PREFIXES) and len(name) == names.HASH_LENGTH:
            targets = (line.rpartition(" -j ")[2] for line in text.splitlines())
            found |= {target: name for target in targets if target in chains}
    # A pool also leads to KUBE-MARK-MASQ, which belongs to the scaffold.
    return {
        chain: name
        for chain, name in found.items()
        if chain.startswith(names.SERVICE_CHAIN_PREFIXES)
    }
