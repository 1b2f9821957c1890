"""Follows a new connection through iptables rules, without a kernel.

It reads rules as text, so it serves for what we render, for what iptables-save prints on a node,
and for what upstream wrote. Where a rule draws lots, both ways are followed with their weights.
What rules mean is in `matches`; which hooks a packet passes is that of a host without IPVS, and
`ipvs` has another. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from kpctl.trace.matches import Context, Rule, State, parse_rule
from kpctl.trace.packets import Arrival, End, StepKind, Tracer, Way
from kubeproxy.modes.base import AnyItem, items_of
from kubeproxy.modes.netfilter.items import (
    Chain,
    ChainGroup,
    ChainState,
    GroupRules,
    GuestChain,
    GuestRules,
    Jump,
    Position,
    Rules,
    Section,
    SharedChain,
)
from kubeproxy.modes.netfilter.rules.text import TableText

ChainKey = tuple[str, str]
"""Table and chain."""


class Segment(Struct, frozen=True):
    """Rules of a chain that belong to one item; None if they come from a text."""

    item: AnyItem | None
    text: str


class RuleSet(Struct, frozen=True):
    """The chains of all tables, with the rules of each, and the item that each chain is."""

    chains: Mapping[ChainKey, Sequence[Segment]]
    items: Mapping[ChainKey, AnyItem] = {}


class RuleTracer(Tracer):
    """Traces over the rules of one node and one family."""

    def __init__(self, rules: RuleSet, context: Context) -> None:
        self._rules = rules
        self._context = context
        self._parsed: dict[ChainKey, list[tuple[AnyItem | None, Rule]]] = {}

    def ways(self, arrival: Arrival, remembered: frozenset[str] = frozenset()) -> Sequence[Way]:
        """Every way the connection can go. `remembered` are affinity lists with this client."""
        start = State(arrival, arrival.destination, arrival.port, remembered=remembered)
        return [way for state, end in self.outcomes(start) for way in self.arrive(state, end)]

    def arrive(self, state: State, end: End) -> Iterator[Way]:
        """What becomes of a packet that has passed all rules."""
        yield way_of(state, end)

    def outcomes(self, start: State) -> Iterator[tuple[State, End]]:
        first = (
            (("nat", "OUTPUT"), ("filter", "OUTPUT"))
            if start.arrival.is_from_node
            else (("nat", "PREROUTING"),)
        )
        for state, end in self.through(first, start):
            if end is End.ACCEPTED:
                yield from self.through(self._later_hooks(state), state)
            else:
                yield state, end

    def _later_hooks(self, state: State) -> Sequence[ChainKey]:
        """After the routing decision: for this host, or through it."""
        post = ("nat", "POSTROUTING")
        is_here = self._context.is_local(state.destination)
        if state.arrival.is_from_node:
            return (post, ("filter", "INPUT")) if is_here else (post,)
        return (("filter", "INPUT"),) if is_here else (("filter", "FORWARD"), post)

    def through(self, hooks: Sequence[ChainKey], state: State) -> Iterator[tuple[State, End]]:
        """A packet through built-in chains; what passes them all is accepted."""
        if not hooks:
            yield state, End.ACCEPTED
            return
        table, chain = hooks[0]
        begun = state.noting(StepKind.HOOK, f"{table} {chain}")
        for after, end in self._walk(table, chain, [begun]):
            if end in (End.FELL_OUT, End.ACCEPTED):
                yield from self.through(hooks[1:], after)
            else:
                yield after, end

    def _walk(self, table: str, chain: str, states: list[State]) -> Iterator[tuple[State, End]]:
        """All packets of `states` through one chain, rule by rule."""
        for item, rule in self._rules_of(table, chain):
            going_on: list[State] = []
            for state in states:
                for is_match, branch in rule.branches(state, self._context):
                    if not is_match:
                        going_on.append(branch)
                        continue
                    noted = branch.noting(StepKind.RULE, chain, rule.text, item)
                    for after, end in self._act(table, rule, noted):
                        if end is None:
                            going_on.append(after)
                        else:
                            yield after, end
            states = going_on
            if not states:
                return
        for state in states:
            yield state, End.FELL_OUT

    def _rules_of(self, table: str, chain: str) -> Sequence[tuple[AnyItem | None, Rule]]:
        """Parsed when first needed: a big cluster has many chains, of which a packet meets few."""
        key = (table, chain)
        if key not in self._parsed:
            self._parsed[key] = [
                (segment.item, parse_rule(line))
                for segment in self._rules.chains.get(key, ())
                for line in segment.text.splitlines()
            ]
        return self._parsed[key]

    def _act(self, table: str, rule: Rule, state: State) -> Iterator[tuple[State, End | None]]:
        key = (table, rule.target)
        if key not in self._rules.chains:
            yield rule.act(state, self._context)
            return
        entered = state.noting(StepKind.ENTER, rule.target, item=self._rules.items.get(key))
        for after, end in self._walk(table, rule.target, [entered]):
            if end is End.FELL_OUT:
                yield after.noting(StepKind.LEAVE, rule.target), None
            else:
                yield after, end


def way_of(state: State, end: End) -> Way:
    return Way(
        end=end,
        destination=state.destination,
        port=state.port,
        is_translated=state.is_dnat,
        is_masqueraded=state.is_masqueraded,
        share=state.weight,
        steps=state.steps,
    )


# ---- where rules come from -------------------------------------------------------------------


def rules_of_text(tables: Sequence[TableText]) -> RuleSet:
    """The rules of saved tables."""
    return RuleSet(
        {
            (table.name, chain): (Segment(None, table.rules.get(chain, "")),)
            for table in tables
            for chain in {**table.policies, **table.rules}
        }
    )


def rules_of_items(items: Mapping[AnyItem, object]) -> RuleSet:
    """The rules that these items stand for: sections in their order, jumps where they belong."""
    chains: dict[ChainKey, list[Segment]] = {}
    owners: dict[ChainKey, AnyItem] = {}
    for item, rules in items_of(items, Chain, Rules).items():
        _add(chains, owners, (item.table, item.name), item, rules.text)
    for group, held in items_of(items, ChainGroup, GroupRules).items():
        for name, text in held.chains.items():
            _add(chains, owners, (group.table, name), group, text)
    for guest, found in items_of(items, GuestChain, GuestRules).items():
        _add(chains, owners, (guest.table, guest.name), guest, found.text)
    states = items_of(items, SharedChain, ChainState)
    for shared, state in states.items():
        _add(chains, owners, (shared.table, shared.name), shared, state.text)
    sections = items_of(items, Section, Rules)
    for section in sorted(sections, key=lambda found: found.order):
        place = chains.setdefault((section.table, section.chain), [])
        place.append(Segment(section, sections[section].text))
    _add_jumps(chains, items_of(items, Jump, Position))
    return RuleSet(chains, owners)


def _add(
    chains: dict[ChainKey, list[Segment]],
    owners: dict[ChainKey, AnyItem],
    key: ChainKey,
    item: AnyItem,
    text: str,
) -> None:
    owners[key] = item
    chains.setdefault(key, []).append(Segment(item, text))


def _add_jumps(chains: dict[ChainKey, list[Segment]], jumps: Mapping[Jump, Position]) -> None:
    """Each goes in front of those before it, so the last is the first; or behind all others."""
    for jump, position in jumps.items():
        place = chains.setdefault((jump.table, jump.chain), [])
        segment = Segment(jump, f"-A {jump.chain} {jump.rule}\n")
        place.insert(0 if position is Position.FIRST else len(place), segment)
