"""What a rule of iptables means for a packet: its matches and its target. Pure.

Knows the matches and targets that the proxy uses in any mode; anything else is an error, not a
guess. Rules are understood in the spelling that we write and in the one that iptables-save prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Protocol as Seam
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kpctl.trace.packets import Arrival, End, Step, StepKind, Untraceable
from kubeproxy.facts.address import contains, is_loopback, join_host_port
from kubeproxy.modes.base import AnyItem

_WORD = re.compile(r'"([^"]*)"|(\S+)')


class State(Struct, frozen=True):
    """A packet on its way, and how likely it came this far."""

    arrival: Arrival
    destination: str
    port: int
    mark: int = 0
    is_dnat: bool = False
    is_masqueraded: bool = False
    is_from_vip: bool = False
    """Has the node taken the service address, which it holds itself, for its own address?"""
    virtual: tuple[int, str, int] | None = None
    """The virtual server (protocol, address, port) that IPVS has taken the packet for."""
    remembered: frozenset[str] = frozenset()
    """Affinity lists that hold this client."""
    weight: Fraction = Fraction(1)
    steps: tuple[Step, ...] = ()

    @property
    def source(self) -> str:
        return self.arrival.destination if self.is_from_vip else self.arrival.source

    def noting(
        self, kind: StepKind, name: str, text: str = "", item: AnyItem | None = None
    ) -> State:
        return replace(self, steps=(*self.steps, Step(kind, name, text, item)))


class Sets(Seam):
    """The ipsets that rules look into."""

    def find(self, name: str, directions: str, state: State) -> tuple[AnyItem, str, bool]:
        """The entry that would match, its text, and whether it is there."""


class NoSets:
    """For rules that match none."""

    def find(self, name: str, _directions: str, _state: State) -> tuple[AnyItem, str, bool]:
        raise Untraceable(f"a rule matches set {name}, of which nothing is known")


class Context(Struct, frozen=True):
    """The host that rules refer to: its addresses, and its ipsets."""

    local: frozenset[str]
    own: str = ""
    """The address that REDIRECT leads to."""
    sets: Sets = NoSets()

    def is_local(self, address: str) -> bool:
        return address in self.local or is_loopback(address)


Test: TypeAlias = Callable[[State, str, Context], bool]
Acted: TypeAlias = tuple[State, End | None]
"""After a target: an end, or None to go on with the next rule."""


class Condition(Struct, frozen=True):
    """The test of a packet, the option's value, and whether the result is negated."""

    test: Test
    value: str
    is_negated: bool = False


class Rule(Struct, frozen=True):
    """One parsed rule."""

    text: str
    conditions: tuple[Condition, ...]
    probability: Fraction | None
    target: str
    arguments: tuple[str, ...]

    def branches(self, state: State, context: Context) -> Iterator[tuple[bool, State]]:
        """(matches?, packet) for each way the rule's lot can fall."""
        for condition in self.conditions:
            if condition.test is _is_in_set:
                state = _note_set(state, condition.value, context)
            if condition.test(state, condition.value, context) == condition.is_negated:
                yield False, state
                return
        if self.probability is None:
            yield True, state
            return
        yield True, replace(state, weight=state.weight * self.probability)
        yield False, replace(state, weight=state.weight * (1 - self.probability))

    def act(self, state: State, context: Context) -> Acted:
        """Do what the rule's target does, if it is no chain."""
        if self.target not in _TARGETS:
            raise Untraceable(f"there is no chain {self.target}, or it is an unknown target")
        if not self.target:
            return state, None
        return _TARGETS[self.target](state, self.arguments, context)


# ---- matches ---------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def _inside(network: str, address: str) -> bool:
    if "/" not in network:
        return network == address
    return contains(network, address)


def _source(state: State, value: str, _context: Context) -> bool:
    return _inside(value, state.source)


def _destination(state: State, value: str, _context: Context) -> bool:
    return _inside(value, state.destination)


def _interface(state: State, value: str, _context: Context) -> bool:
    if value.endswith("+"):
        return state.arrival.interface.startswith(value[:-1])
    return state.arrival.interface == value


def _protocol(state: State, value: str, _context: Context) -> bool:
    return state.arrival.protocol.lower_name == value


def _port(state: State, value: str, _context: Context) -> bool:
    return state.port == int(value)


def _is_to_local(state: State, _value: str, context: Context) -> bool:
    return context.is_local(state.destination)


def _is_from_local(state: State, _value: str, context: Context) -> bool:
    return context.is_local(state.source)


def _connection(state: State, value: str, _context: Context) -> bool:
    """Only first packets are traced: they are NEW, and DNAT once translated."""
    states = value.split(",")
    return "NEW" in states or ("DNAT" in states and state.is_dnat)


def _mark(state: State, value: str, _context: Context) -> bool:
    wanted, _, mask = value.partition("/")
    return state.mark & int(mask or "0xffffffff", 0) == int(wanted, 0)


def _is_remembered(state: State, value: str, _context: Context) -> bool:
    return value in state.remembered


def _is_bridged(_state: State, _value: str, _context: Context) -> bool:
    """Without br_netfilter no packet is known to have come in through a port of a bridge."""
    return False


def _is_in_set(state: State, value: str, context: Context) -> bool:
    name, directions = value.split()
    return context.sets.find(name, directions, state)[2]


def _note_set(state: State, value: str, context: Context) -> State:
    name, directions = value.split()
    item, text, is_there = context.sets.find(name, directions, state)
    return state.noting(StepKind.LOOK if is_there else StepKind.MISS, name, text, item)


def _virtual_protocol(state: State, value: str, _context: Context) -> bool:
    return state.virtual is not None and state.virtual[0] == int(value)


def _virtual_address(state: State, value: str, _context: Context) -> bool:
    return state.virtual is not None and state.virtual[1] == value.partition("/")[0]


def _virtual_port(state: State, value: str, _context: Context) -> bool:
    return state.virtual is not None and state.virtual[2] == int(value)


_CONDITIONS: Mapping[str, Test] = {
    "-s": _source,
    "-d": _destination,
    "-i": _interface,
    "-p": _protocol,
    "--dport": _port,
    "--dst-type": _is_to_local,
    "--src-type": _is_from_local,
    "--ctstate": _connection,
    "--state": _connection,
    "--mark": _mark,
    "--vproto": _virtual_protocol,
    "--vaddr": _virtual_address,
    "--vport": _virtual_port,
}
_WITHOUT_EFFECT = frozenset(
    {"--comment", "-m", "--mode", "--seconds", "--mask", "--nfacct-name", "--name", "--packet"}
)
_FLAGS = frozenset({"--set", "--reap", "--rsource"})


def parse_rule(line: str) -> Rule:
    """A rule line. Raises Untraceable if it has a match that is not known."""
    words = [quoted or plain for quoted, plain in _WORD.findall(line)][2:]
    conditions: list[Condition] = []
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
        if word in ("-j", "-g"):
            target, *rest = words[position:]
            arguments = tuple(rest)
            break
        if word == "--rcheck":
            conditions.append(Condition(_is_remembered, affinity))
        elif word == "--physdev-is-in":
            conditions.append(Condition(_is_bridged, "", negated))
        elif word == "--match-set":
            value = " ".join(words[position : position + 2])
            conditions.append(Condition(_is_in_set, value, negated))
            position += 2
        elif word == "--probability":
            probability = Fraction(words[position])
            position += 1
        elif word == "--every":
            probability = Fraction(1, int(words[position]))
            position += 1
        elif word in _CONDITIONS:
            conditions.append(Condition(_CONDITIONS[word], words[position], negated))
            position += 1
        elif word in _WITHOUT_EFFECT:
            position += 1
        elif word not in _FLAGS:
            raise Untraceable(f"unknown match {word!r} in {line!r}")
        negated = False
    return Rule(line, tuple(conditions), probability, target, arguments)


# ---- targets ---------------------------------------------------------------------------------


def _end(end: End, name: str) -> Callable[[State, tuple[str, ...], Context], Acted]:
    return lambda state, _arguments, _context: (state.noting(StepKind.DO, name), end)


def _set_mark(state: State, arguments: tuple[str, ...], _context: Context) -> Acted:
    option, value = arguments
    number, _, mask = value.partition("/")
    bits = int(number, 0)
    if option == "--or-mark":
        mark = state.mark | bits
    elif option == "--xor-mark":
        mark = state.mark ^ bits
    else:
        mark = state.mark & ~int(mask or "0xffffffff", 0) ^ bits
    action = "mark" if mark > state.mark else "unmark"
    return replace(state, mark=mark).noting(StepKind.DO, action), None


def _masquerade(state: State, _arguments: tuple[str, ...], _context: Context) -> Acted:
    hidden = replace(state, is_masqueraded=True)
    return hidden.noting(StepKind.DO, "masquerade"), End.ACCEPTED


def _dnat(state: State, arguments: tuple[str, ...], _context: Context) -> Acted:
    address, _, port = arguments[1].rpartition(":")
    return _translated(state, address.strip("[]"), int(port)), End.ACCEPTED


def _redirect(state: State, arguments: tuple[str, ...], context: Context) -> Acted:
    """Lead to this host: to the loopback address if the host itself sends."""
    here = state.arrival.family.loopback if state.arrival.is_from_node else context.own
    return _translated(state, here, int(arguments[1])), End.ACCEPTED


def _translated(state: State, address: str, port: int) -> State:
    moved = replace(state, destination=address, port=port, is_dnat=True)
    return moved.noting(StepKind.DO, "dnat", f"to {join_host_port(address, port)}")


_TARGETS: Mapping[str, Callable[[State, tuple[str, ...], Context], Acted]] = {
    "": lambda state, _arguments, _context: (state, None),
    "ACCEPT": _end(End.ACCEPTED, "accept"),
    "DROP": _end(End.DROPPED, "drop"),
    "REJECT": _end(End.REJECTED, "reject"),
    "RETURN": _end(End.FELL_OUT, "return"),
    "MARK": _set_mark,
    "MASQUERADE": _masquerade,
    "DNAT": _dnat,
    "REDIRECT": _redirect,
}
