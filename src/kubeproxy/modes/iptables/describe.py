"""The restore input of a full sync exactly as upstream would write it. Pure.

The sink writes less, and in its own order, which leads to the same tables. This is for people and
for comparison with upstream: `kpctl render`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from kubeproxy.modes.base import SCAFFOLD, Owner, items_of
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.items import Fragment
from kubeproxy.modes.iptables.scaffold import LAST_SECTION
from kubeproxy.modes.netfilter.items import (
    Chain,
    ChainGroup,
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


class _PortText(Struct, frozen=True):
    """One service port: its sections by table and chain, and its chains in upstream's order."""

    sections: Mapping[tuple[str, str], Rules]
    chains: Mapping[str, str]

    def lines(self, table: str, chain: str) -> list[str]:
        """The service port's rules in a shared chain, where it has one section at most."""
        section = self.sections.get((table, chain), Rules())
        return section.text.splitlines(keepends=True)


def describe(fragments: Mapping[Owner, Fragment]) -> str:
    """Restore input for these fragments: the scaffold's and any number of service ports'.

    Without the scaffold's its chains are not declared: that would empty them.
    """
    scaffold = fragments.get(SCAFFOLD, {})
    fixed = items_of(scaffold, Chain, Rules)
    last = items_of(scaffold, Section, Rules)
    ports = [_port_text(fragments[owner]) for owner in sorted(fragments) if owner != SCAFFOLD]
    parts = [
        "*filter\n",
        *map(chain_line, _FILTER_CHAINS if scaffold else ()),
        *_guest_chain(scaffold),
        *(text for port in ports for text in _filter_rules(port)),
        fixed.get(Chain("filter", names.FORWARD), Rules()).text,
        "COMMIT\n",
        "*nat\n",
        *map(chain_line, _NAT_CHAINS if scaffold else ()),
        *(chain_line(chain) for port in ports for chain in port.chains),
        fixed.get(Chain("nat", names.POSTROUTING), Rules()).text,
        fixed.get(Chain("nat", names.MARK_MASQ), Rules()).text,
        *(text for port in ports for text in _nat_rules(port)),
        last.get(LAST_SECTION, Rules()).text,
        "COMMIT\n",
    ]
    return "".join(parts)


def _port_text(fragment: Fragment) -> _PortText:
    groups = items_of(fragment, ChainGroup, GroupRules)
    return _PortText(
        sections={
            (section.table, section.chain): found
            for section, found in items_of(fragment, Section, Rules).items()
        },
        chains={chain: text for group in groups.values() for chain, text in group.chains.items()},
    )


def _guest_chain(scaffold: Fragment) -> Iterator[str]:
    guests = items_of(scaffold, GuestChain, GuestRules)
    held = guests.get(GuestChain("filter", names.KUBELET_FIREWALL), GuestRules())
    if held.text:
        yield chain_line(names.KUBELET_FIREWALL)
        yield held.text


def _filter_rules(port: _PortText) -> Iterator[str]:
    """Upstream writes firewall drops between refusals of external IPs and those of the VIPs."""
    yield from port.lines("filter", names.SERVICES)
    drops = port.lines("filter", names.PROXY_FIREWALL)
    guarded = {_destination(line) for line in drops}
    refusals = port.lines("filter", names.EXTERNAL_SERVICES)
    before = [line for line in refusals if drops and _destination(line) not in guarded | {""}]
    yield from before
    yield from drops
    yield from (line for line in refusals if line not in before)
    yield from port.lines("filter", names.NODE_PORTS)


def _destination(line: str) -> str:
    _, _, rest = line.partition(" -d ")
    return rest.partition(" ")[0]


def _nat_rules(port: _PortText) -> Iterator[str]:
    """Dispatch first, then the cluster IP's masquerading, then the chains in order."""
    yield from port.lines("nat", names.SERVICES)
    yield from port.lines("nat", names.NODE_PORTS)
    chains = port.chains.items()
    yield from (_masquerade_of(name, text) for name, text in chains)
    yield from (text[len(_masquerade_of(name, text)) :] for name, text in chains)


def _masquerade_of(name: str, text: str) -> str:
    """The first rule of a pool's chain, if it is the one about masquerading."""
    if not name.startswith(names.POOL_CHAIN_PREFIXES):
        return ""
    first, end, _ = text.partition("\n")
    return first + end if first.endswith(f" -j {names.MARK_MASQ}") else ""
