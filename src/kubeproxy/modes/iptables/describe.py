"""The restore input of a full sync exactly as upstream would write it. Pure.

The sink writes less, and in its own order, which leads to the same tables. This is for people and
for comparison with upstream: `kpctl render`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeproxy.modes.base import SCAFFOLD, Fragment, Owner
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.scaffold import LAST
from kubeproxy.modes.netfilter.items import (
    Chain,
    GroupRules,
    GuestChain,
    GuestRules,
    Rules,
    Section,
)
from kubeproxy.modes.netfilter.rules.text import chain_line

_FILTER_CHAINS = (
    names.SERVICES,
    names.EXTERNAL_SERVICES,
    names.FORWARD,
    names.NODE_PORTS,
    names.PROXY_FIREWALL,
)
_NAT_CHAINS = (names.SERVICES, names.NODE_PORTS, names.POSTROUTING, names.MARK_MASQ)
_POOL_PREFIXES = ("KUBE-SVC-", "KUBE-SVL-")


def full_restore(fragments: Mapping[Owner, Fragment]) -> str:
    """Restore input for these fragments: the scaffold's and any number of service ports'."""
    scaffold = fragments.get(SCAFFOLD, {})
    services = [fragments[owner] for owner in sorted(fragments) if owner != SCAFFOLD]
    parts = [
        "*filter\n",
        *map(chain_line, _FILTER_CHAINS),
        *_guest_chain(scaffold),
        *(text for fragment in services for text in _filter_rules(fragment)),
        _text(scaffold, Chain("filter", names.FORWARD)),
        "COMMIT\n",
        "*nat\n",
        *map(chain_line, _NAT_CHAINS),
        *(chain_line(chain) for fragment in services for chain in _own_chains(fragment)),
        _text(scaffold, Chain("nat", names.POSTROUTING)),
        _text(scaffold, Chain("nat", names.MARK_MASQ)),
        *(text for fragment in services for text in _nat_rules(fragment)),
        _text(scaffold, Section("nat", names.SERVICES, (), LAST)),
        "COMMIT\n",
    ]
    return "".join(parts)


def _text(fragment: Fragment, item: Chain | Section) -> str:
    value = fragment.get(item)
    return value.text if isinstance(value, Rules) else ""


def _guest_chain(scaffold: Fragment) -> Iterator[str]:
    value = scaffold.get(GuestChain("filter", names.KUBELET_FIREWALL))
    if isinstance(value, GuestRules) and value.text:
        yield chain_line(names.KUBELET_FIREWALL)
        yield value.text


def _own_chains(fragment: Fragment) -> Mapping[str, str]:
    """The service port's chains and their rules, in upstream's order."""
    for value in fragment.values():
        if isinstance(value, GroupRules):
            return value.chains
    return {}


def _section(fragment: Fragment, table: str, chain: str) -> list[str]:
    """A service port has at most one section in a chain."""
    for item, value in fragment.items():
        if isinstance(item, Section) and (item.table, item.chain) == (table, chain):
            return value.text.splitlines(keepends=True) if isinstance(value, Rules) else []
    return []


def _filter_rules(fragment: Fragment) -> Iterator[str]:
    """Upstream writes firewall drops between refusals of external IPs and those of the VIPs."""
    yield from _section(fragment, "filter", names.SERVICES)
    drops = _section(fragment, "filter", names.PROXY_FIREWALL)
    guarded = {_destination(line) for line in drops}
    refusals = _section(fragment, "filter", names.EXTERNAL_SERVICES)
    before = [line for line in refusals if drops and _destination(line) not in guarded | {""}]
    yield from before
    yield from drops
    yield from (line for line in refusals if line not in before)
    yield from _section(fragment, "filter", names.NODE_PORTS)


def _destination(line: str) -> str:
    _, _, rest = line.partition(" -d ")
    return rest.partition(" ")[0]


def _nat_rules(fragment: Fragment) -> Iterator[str]:
    """Dispatch first, then the cluster IP's masquerading, then the chains in order."""
    yield from _section(fragment, "nat", names.SERVICES)
    yield from _section(fragment, "nat", names.NODE_PORTS)
    chains = _own_chains(fragment).items()
    yield from (_masquerade_of(name, text) for name, text in chains)
    yield from (text[len(_masquerade_of(name, text)) :] for name, text in chains)


def _masquerade_of(name: str, text: str) -> str:
    """The first rule of a pool's chain, if it is the one about masquerading."""
    if not name.startswith(_POOL_PREFIXES):
        return ""
    first, end, _ = text.partition("\n")
    return first + end if first.endswith(f" -j {names.MARK_MASQ}") else ""
