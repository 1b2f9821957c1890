"""What is ours in a table that was read. Pure.

Recognised as ours are the chains of a mode's `Scope`, by name, by prefix or as a group, and its
jumps. A shared chain is recognised rule by rule, or else not at all: its state then differs from
what is wanted, and it will be rewritten. What another mode has under names of ours is
not ours: `set_aside` shows the table without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from kubeproxy.modes.netfilter.compile.restore import SharedContents
from kubeproxy.modes.netfilter.compile.shared import SharedContent
from kubeproxy.modes.netfilter.items import (
    KNOWN,
    Chain,
    ChainGroup,
    ChainState,
    GroupRules,
    GuestChain,
    GuestRules,
    Jump,
    Order,
    Position,
    RuleItem,
    Rules,
    RuleValue,
    Scope,
    Section,
    SharedChain,
)
from kubeproxy.modes.netfilter.names import CONTESTED, SIGNS, old_name
from kubeproxy.modes.netfilter.rules.canonical import canonical_rule
from kubeproxy.modes.netfilter.rules.text import USER_CHAIN, TableText


class OwnContent(Struct, frozen=True):
    """What is ours in one table; `shared` has only the shared chains that were recognised."""

    groups: dict[ChainGroup, GroupRules]
    chains: dict[Chain, Rules]
    guests: dict[GuestChain, GuestRules]
    states: dict[SharedChain, ChainState]
    shared: dict[tuple[str, str], SharedContent]
    sections: dict[Section, Rules]
    jumps: dict[Jump, Position]

    @property
    def rule_count(self) -> int:
        return (
            sum(rules.count for rules in self.groups.values())
            + sum(rules.count for rules in self.chains.values())
            + sum(rules.count for rules in self.guests.values())
            + sum(rules.count for rules in self.sections.values())
        )

    def items(self) -> dict[RuleItem, RuleValue]:
        """Everything as items, for the ledger."""
        found: dict[RuleItem, RuleValue] = {}
        found.update(self.groups.items())
        found.update(self.chains.items())
        found.update(self.guests.items())
        found.update(self.states.items())
        found.update(self.sections.items())
        found.update(self.jumps.items())
        return found


def read_table(table: TableText, scope: Scope) -> OwnContent:
    """Everything in a table that is ours by the scope."""
    group_of = scope.group({chain: table.rules.get(chain, "") for chain in table.policies})
    chains: dict[Chain, Rules] = {}
    guests: dict[GuestChain, GuestRules] = {}
    states: dict[SharedChain, ChainState] = {}
    shared: dict[tuple[str, str], SharedContent] = {}
    for chain in table.policies:
        if chain in group_of:
            continue
        text = table.rules.get(chain, "")
        if scope.shares(table.name, chain):
            content = _recognise(table, chain, scope)
            item = SharedChain(table.name, chain)
            if content is not None:
                shared[table.name, chain] = content
                states[item] = KNOWN
            else:
                states[item] = ChainState(text, _foreign(table, chain, scope))
        elif scope.owns(table.name, chain):
            chains[Chain(table.name, chain)] = Rules(text)
        elif scope.is_guest_of(table.name, chain):
            guests[GuestChain(table.name, chain)] = GuestRules(text, is_read=True)
    return OwnContent(
        groups=_read_groups(table, group_of),
        chains=chains,
        guests=guests,
        states=states,
        shared=shared,
        sections=_read_sections(shared),
        jumps=_read_jumps(table, scope),
    )


class SetAside(Struct, frozen=True):
    """A table as it would be if these chains, which are of another mode, had their old names."""

    table: TableText
    chains: tuple[str, ...] = ()


def set_aside(table: TableText, scope: Scope) -> SetAside:
    """Find the chains of another mode that have names of ours.

    They serve until we have taken over, so they are not rewritten but renamed, and the jumps that
    lead to them with them. A table that has a sign of our own mode was ours before: then they are
    our own chains, or a take-over was interrupted after the renaming.
    """
    theirs, ours = (SIGNS.get(mode, {}).get(table.name) for mode in (scope.rival, scope.mode))
    if theirs not in table.policies or ours in table.policies:
        return SetAside(table)
    contested = sorted(CONTESTED.get(table.name, frozenset()) & table.policies.keys())
    chains = tuple(chain for chain in contested if old_name(chain) not in table.policies)
    return SetAside(_renamed(table, chains), chains)


def _renamed(table: TableText, chains: Sequence[str]) -> TableText:
    """The table with the old names of these chains; their own rules are left out."""
    policies = {old_name(c) if c in chains else c: policy for c, policy in table.policies.items()}
    rules = {chain: text for chain, text in table.rules.items() if chain not in chains}
    for entrance in rules.keys() & _entrances(table):
        for chain in chains:
            led, leads = f" -j {chain}\n", f" -j {old_name(chain)}\n"
            rules[entrance] = rules[entrance].replace(led, leads)
    return TableText(table.name, policies, rules)


def _entrances(table: TableText) -> frozenset[str]:
    """The built-in chains."""
    return frozenset(chain for chain, policy in table.policies.items() if policy != USER_CHAIN)


def lines_before(table: TableText, scope: Scope) -> dict[str, int]:
    """By built-in chain: behind how many rules our jumps belong."""
    found: dict[str, int] = {}
    for chain in {jump.chain for jump, _ in scope.jumps if jump.table == table.name}:
        for number, line in enumerate(table.lines(chain), 1):
            if line.rpartition(" -j ")[2].partition(" ")[0] in scope.follows:
                found[chain] = number
    return found


def _read_groups(table: TableText, group_of: Mapping[str, str]) -> dict[ChainGroup, GroupRules]:
    chains: dict[str, dict[str, str]] = {}
    for chain, group in group_of.items():
        chains.setdefault(group, {})[chain] = table.rules.get(chain, "")
    return {ChainGroup(table.name, group): GroupRules(found) for group, found in chains.items()}


def _recognise(table: TableText, chain: str, scope: Scope) -> SharedContent | None:
    """A shared chain's sections, if every rule is recognised and they stand in order."""
    sections: dict[Order, list[str]] = {}
    last = None
    for line in table.lines(chain):
        order = scope.identify(table.name, chain, line)
        if order is None or (last is not None and order < last):
            return None
        sections.setdefault(order, []).append(f"{line}\n")
        last = order
    return SharedContent(tuple(sections), ["".join(lines) for lines in sections.values()])


def _foreign(table: TableText, chain: str, scope: Scope) -> str:
    """The rules of a shared chain that are not recognised."""
    lines = table.lines(chain)
    strange = (line for line in lines if scope.identify(table.name, chain, line) is None)
    return "".join(f"{line}\n" for line in strange)


def _read_sections(contents: SharedContents) -> dict[Section, Rules]:
    return {
        Section(table, chain, key, rank): Rules(text)
        for (table, chain), content in contents.items()
        for (rank, key), text in content.sections()
    }


def _read_jumps(table: TableText, scope: Scope) -> dict[Jump, Position]:
    """Those of our jumps that are there, wherever in their chain they stand."""
    wanted = [(jump, place) for jump, place in scope.jumps if jump.table == table.name]
    present = {
        chain: set(map(canonical_rule, table.lines(chain)))
        for chain in {jump.chain for jump, _ in wanted}
    }
    return {
        jump: place
        for jump, place in wanted
        if canonical_rule(f"-A {jump.chain} {jump.rule}") in present[jump.chain]
    }
