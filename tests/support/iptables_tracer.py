"""Follows a new connection through iptables rules, without a kernel.

It reads rules as text, so it serves for what we render, for what iptables-save prints on a node,
and for what upstream wrote. Where a rule draws lots, both ways are followed with their weights.
Knows the matches and targets the proxy uses; anything else is an error, not a guess. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kpctl.flows.trace import Arrival, End, Ruling, Traced
from kubeproxy.facts.address import contains
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import SCAFFOLD
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.iptables.scaffold import SCOPE
from kubeproxy.modes.netfilter.rules.text import TableText, parse_save
from kubeproxy.plan.types import ServicePlan

_WORD = re.compile(r'"([^"]*)"|(\S+)')


class State(Struct, frozen=True):
    """A packet on its way, and how likely it came this far."""

    arrival: Arrival
    destination: str
    port: int
    mark: int = 0
    is_dnat: bool = False
    is_masqueraded: bool = False
    remembered: frozenset[str] = frozenset()
    """Affinity lists that hold this client."""
    weight: Fraction = Fraction(1)
    trail: tuple[tuple[str, str], ...] = ()
    """What was passed: ("hook", table and chain), ("enter", chain), ("leave", chain), and
    ("do", action)."""

    def noting(self, what: str, name: str) -> State:
        return replace(self, trail=(*self.trail, (what, name)))


class Outcome(Struct, frozen=True):
    """One way a connection can go."""

    end: End
    state: State


class RuleTracer:
    """Answers for one node and one family over the rules of its tables."""

    def __init__(self, tables: Mapping[str, TableText], local: Sequence[str]) -> None:
        self._rules = {
            (table.name, chain): [_parse(line) for line in table.lines(chain)]
            for table in tables.values()
            for chain in table.rules
        }
        self._chains = {(t.name, chain) for t in tables.values() for chain in t.policies}
        self._local = frozenset(local)

    def trace(self, arrival: Arrival) -> Traced:
        """What the rules do with a new connection."""
        outcomes = self.outcomes(arrival)
        ends = {outcome.end for outcome in outcomes}
        if End.DROPPED in ends:
            return Traced(Ruling.DROP)
        if End.REJECTED in ends:
            return Traced(Ruling.REJECT)
        moved = [o.state for o in outcomes if o.state.is_dnat]
        if not moved:
            return Traced(Ruling.UNTOUCHED)
        where = frozenset((s.destination, s.port) for s in moved)
        hidden = frozenset((s.destination, s.port) for s in moved if s.is_masqueraded)
        return Traced(Ruling.FORWARD, where, hidden)

    def spread(self, arrival: Arrival) -> dict[tuple[str, int], Fraction]:
        """How likely each endpoint is."""
        found: dict[tuple[str, int], Fraction] = {}
        for outcome in self.outcomes(arrival):
            state = outcome.state
            if state.is_dnat:
                key = (state.destination, state.port)
                found[key] = found.get(key, Fraction(0)) + state.weight
        return found

    def outcomes(self, arrival: Arrival, remembered: frozenset[str] = frozenset()) -> list[Outcome]:
        """Every way the connection can go."""
        start = State(arrival, arrival.destination, arrival.port, remembered=remembered)
        hooks = (
            (("nat", "OUTPUT"), ("filter", "OUTPUT"))
            if arrival.is_from_node
            else (("nat", "PREROUTING"),)
        )
        live, over = self._through(hooks, [start])
        ended = [*over]
        for state in live:
            passed, over = self._through(self._later_hooks(state), [state])
            ended += over + [Outcome(End.ACCEPTED, state) for state in passed]
        return ended

    def _later_hooks(self, state: State) -> Sequence[tuple[str, str]]:
        """After the routing decision: for this host, or through it."""
        post = ("nat", "POSTROUTING")
        is_here = state.destination in self._local
        if state.arrival.is_from_node:
            return (post, ("filter", "INPUT")) if is_here else (post,)
        return (("filter", "INPUT"),) if is_here else (("filter", "FORWARD"), post)

    def _through(
        self, hooks: Sequence[tuple[str, str]], states: list[State]
    ) -> tuple[list[State], list[Outcome]]:
        over: list[Outcome] = []
        for table, chain in hooks:
            passed: list[State] = []
            begun = [state.noting("hook", f"{table} {chain}") for state in states]
            for outcome in self._walk(table, chain, begun):
                if outcome.end in (End.FELL_OUT, End.ACCEPTED):
                    passed.append(outcome.state)
                else:
                    over.append(outcome)
            states = passed
        return states, over

    def _walk(self, table: str, chain: str, states: list[State]) -> Iterator[Outcome]:
        """All packets of `states` through one chain, rule by rule."""
        for rule in self._rules.get((table, chain), ()):
            going_on: list[State] = []
            for state in states:
                for is_match, branch in rule.branches(state, self._local):
                    if not is_match:
                        going_on.append(branch)
                        continue
                    for outcome in self._act(table, rule, branch):
                        if outcome.end is None:
                            going_on.append(outcome.state)
                        else:
                            yield Outcome(outcome.end, outcome.state)
            states = going_on
        for state in states:
            yield Outcome(End.FELL_OUT, state)

    def _act(self, table: str, rule: _Rule, state: State) -> Iterator[_Step]:
        if rule.target in _TARGETS:
            action = "unmark" if "--xor-mark" in rule.arguments else rule.target.lower()
            noted = state.noting("do", action) if action else state
            yield _TARGETS[rule.target](noted, rule.arguments)
        elif (table, rule.target) in self._chains:
            entered = state.noting("enter", rule.target)
            for outcome in self._walk(table, rule.target, [entered]):
                if outcome.end is End.FELL_OUT:
                    yield _Step(None, outcome.state.noting("leave", rule.target))
                else:
                    yield _Step(outcome.end, outcome.state)
        else:
            raise ValueError(f"table {table} has no chain {rule.target}, or an unknown target")


class _Step(Struct, frozen=True):
    """After a target: an end, or None to go on with the next rule."""

    end: End | None
    state: State


_Test: TypeAlias = Callable[[State, str, frozenset[str]], bool]
_Condition: TypeAlias = tuple[_Test, str, bool]
"""The test of a packet, the option's value, and whether the result is negated."""


class _Rule(Struct, frozen=True):
    """One parsed rule."""

    conditions: tuple[_Condition, ...]
    probability: Fraction | None
    target: str
    arguments: tuple[str, ...]

    def branches(self, state: State, local: frozenset[str]) -> Iterator[tuple[bool, State]]:
        """(matches?, packet) for each way the rule's lot can fall."""
        for condition, value, negated in self.conditions:
            if condition(state, value, local) == negated:
                yield False, state
                return
        if self.probability is None:
            yield True, state
            return
        yield True, replace(state, weight=state.weight * self.probability)
        yield False, replace(state, weight=state.weight * (1 - self.probability))


@lru_cache(maxsize=65536)
def _inside(network: str, address: str) -> bool:
    if "/" not in network:
        return network == address
    return contains(network, address)


def _source(state: State, value: str, _local: frozenset[str]) -> bool:
    return _inside(value, state.arrival.source)


def _destination(state: State, value: str, _local: frozenset[str]) -> bool:
    return _inside(value, state.destination)


def _interface(state: State, value: str, _local: frozenset[str]) -> bool:
    if value.endswith("+"):
        return state.arrival.interface.startswith(value[:-1])
    return state.arrival.interface == value


def _protocol(state: State, value: str, _local: frozenset[str]) -> bool:
    return state.arrival.protocol.lower_name == value


def _port(state: State, value: str, _local: frozenset[str]) -> bool:
    return state.port == int(value)


def _is_to_local(state: State, _value: str, local: frozenset[str]) -> bool:
    return state.destination in local


def _is_from_local(state: State, _value: str, local: frozenset[str]) -> bool:
    return state.arrival.source in local


def _connection(state: State, value: str, _local: frozenset[str]) -> bool:
    """Only first packets are traced: they are NEW, and DNAT once translated."""
    states = value.split(",")
    return "NEW" in states or ("DNAT" in states and state.is_dnat)


def _mark(state: State, value: str, _local: frozenset[str]) -> bool:
    wanted, _, mask = value.partition("/")
    return state.mark & int(mask or "0xffffffff", 0) == int(wanted, 0)


def _is_remembered(state: State, value: str, _local: frozenset[str]) -> bool:
    return value in state.remembered


_CONDITIONS: dict[str, _Test] = {
    "-s": _source,
    "-d": _destination,
    "-i": _interface,
    "-p": _protocol,
    "--dport": _port,
    "--dst-type": _is_to_local,
    "--src-type": _is_from_local,
    "--ctstate": _connection,
    "--mark": _mark,
}
_WITHOUT_EFFECT = frozenset(
    {"--comment", "-m", "--mode", "--seconds", "--mask", "--nfacct-name", "--name"}
)
_FLAGS = frozenset({"--set", "--reap", "--rsource"})


def _parse(line: str) -> _Rule:
    """A rule line; raises on a match this tracer does not know."""
    words = [quoted or plain for quoted, plain in _WORD.findall(line)][2:]
    conditions: list[_Condition] = []
    probability = None
    target, arguments = "", ()
    affinity = words[words.index("--name") + 1] if "--name" in words else ""
    position, negated = 0, False
    while position < len(words):
        word = words[position]
        position += 1
        if word == "!":
            negated = True
            continue
        if word == "-j":
            target, *rest = words[position:]
            arguments = tuple(rest)
            break
        if word == "--rcheck":
            conditions.append((_is_remembered, affinity, False))
        elif word == "--probability":
            probability = Fraction(words[position])
            position += 1
        elif word in _CONDITIONS:
            conditions.append((_CONDITIONS[word], words[position], negated))
            position += 1
        elif word in _WITHOUT_EFFECT:
            position += 1
        elif word not in _FLAGS:
            raise ValueError(f"unknown match {word!r} in {line!r}")
        negated = False
    return _Rule(tuple(conditions), probability, target, arguments)


def _end(end: End) -> Callable[[State, tuple[str, ...]], _Step]:
    return lambda state, _arguments: _Step(end, state)


def _no_target(state: State, _arguments: tuple[str, ...]) -> _Step:
    return _Step(None, state)


def _set_mark(state: State, arguments: tuple[str, ...]) -> _Step:
    option, value = arguments
    number, _, mask = value.partition("/")
    bits = int(number, 0)
    if option == "--or-mark":
        return _Step(None, replace(state, mark=state.mark | bits))
    if option == "--xor-mark":
        return _Step(None, replace(state, mark=state.mark ^ bits))
    cleared = state.mark & ~int(mask, 0)
    return _Step(None, replace(state, mark=cleared ^ bits))


def _masquerade(state: State, _arguments: tuple[str, ...]) -> _Step:
    return _Step(End.ACCEPTED, replace(state, is_masqueraded=True))


def _dnat(state: State, arguments: tuple[str, ...]) -> _Step:
    address, _, port = arguments[1].rpartition(":")
    to = address.strip("[]")
    return _Step(End.ACCEPTED, replace(state, destination=to, port=int(port), is_dnat=True))


_TARGETS: dict[str, Callable[[State, tuple[str, ...]], _Step]] = {
    "": _no_target,
    "ACCEPT": _end(End.ACCEPTED),
    "DROP": _end(End.DROPPED),
    "REJECT": _end(End.REJECTED),
    "RETURN": _end(End.FELL_OUT),
    "MARK": _set_mark,
    "MASQUERADE": _masquerade,
    "DNAT": _dnat,
}


def trace_plans(
    plans: Sequence[ServicePlan], node: NodeFacts, options: Options | None = None
) -> RuleTracer:
    """A tracer over what the mode renders for these plans."""
    backend = IptablesBackend(node.family, options or Options())
    fragments = {plan.id: backend.render(plan, node) for plan in plans}
    text = backend.describe({SCAFFOLD: backend.scaffold(node), **fragments})
    return RuleTracer(_with_jumps(parse_save(text)), node.addresses)


def _with_jumps(tables: Sequence[TableText]) -> dict[str, TableText]:
    """Restore input holds no jumps; put them where a sync inserts them, the last on top."""
    found = {}
    for table in tables:
        rules = dict(table.rules)
        policies = {**table.policies, "KUBE-FIREWALL": "-"}
        for jump, _ in SCOPE.jumps:
            if jump.table == table.name:
                rules[jump.chain] = f"-A {jump.chain} {jump.rule}\n" + rules.get(jump.chain, "")
        found[table.name] = TableText(table.name, policies, rules)
    return found
