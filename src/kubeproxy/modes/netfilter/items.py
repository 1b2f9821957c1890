"""Iptables state as items: what a mode may want in the kernel, and how ours is recognised.

    Chain         a chain that one owner fills alone            → its Rules
    ChainGroup    all chains that belong together to one owner  → its GroupRules
    SharedChain   a chain that many owners fill                 → KNOWN
    Section       one owner's rules in a shared chain           → its Rules, in order of `order`
    Jump          one rule in a built-in chain that leads to us → its Position
    GuestChain    a chain another program has as well           → at least these GuestRules

A `Scope` defines which of all this is a mode's own. Two values are equal if iptables would
print the same rules for them, because what is read is compared with what was written. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Self, TypeAlias

from msgspec import Struct

from kubeproxy.modes.netfilter.rules.canonical import canonical_rule

SortKey: TypeAlias = tuple[str, ...]


class Position(Enum):
    """Where a jump goes when it is missing; one that exists stays where it is."""

    FIRST = "first"
    LAST = "last"


class ChainState(Struct, frozen=True, gc=False):
    """Do we know, rule by rule, what a shared chain holds? The wanted value is always KNOWN.

    Of one that we do not know, `text` has all rules and `foreign` those that are not recognised:
    none, if it is only that ours are out of order.
    """

    text: str = ""
    foreign: str = ""

    @property
    def is_known(self) -> bool:
        return not self.text


KNOWN = ChainState()


class Chain(Struct, frozen=True, gc=False):
    """A chain filled by its owner alone; its value is its Rules, possibly none."""

    table: str
    name: str


class ChainGroup(Struct, frozen=True, gc=False):
    """Chains of one owner that come and go together, known by a name they have in common.

    One item where there could be dozens: a big cluster has ten times as many chains as services,
    and every table of the program would have ten times as many entries.
    """

    table: str
    name: str


class SharedChain(Struct, frozen=True, gc=False):
    """A chain made of sections."""

    table: str
    name: str


class Section(Struct, frozen=True, gc=False):
    """One owner's rules in a shared chain. Sections stand in the order of `rank`, then `key`.

    A section is the unit of change in a chain that all services share, so that one changed service
    does not rewrite the rules of all others.
    """

    table: str
    chain: str
    key: SortKey
    rank: int = 0

    @property
    def order(self) -> Order:
        return (self.rank, self.key)


Order: TypeAlias = tuple[int, SortKey]


class GuestChain(Struct, frozen=True, gc=False):
    """A chain that another program creates too.

    It must exist and hold at least our rules. It is never removed.
    """

    table: str
    name: str


class Jump(Struct, frozen=True, gc=False):
    """A rule in a built-in chain; `rule` is spelled as iptables-save prints it, without `-A`."""

    table: str
    chain: str
    rule: str


class _ByMeaning(Struct, frozen=True, eq=False, gc=False):
    """A value that equals another of its type if iptables would print both alike."""

    def means_the_same(self, other: Self) -> bool:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.means_the_same(other)

    def __ne__(self, other: object) -> bool:
        # Struct's own __ne__ compares fields and does not call __eq__.
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # equality is by meaning, which has no cheap hash


class Rules(_ByMeaning, frozen=True, eq=False, gc=False):
    """The rules of a chain or section: complete `-A` lines, each with its line end."""

    text: str = ""

    @property
    def count(self) -> int:
        return self.text.count("\n")

    def lines(self) -> list[str]:
        return self.text.splitlines()

    def means_the_same(self, other: Self) -> bool:
        if self.text == other.text:
            return True
        if self.count != other.count:
            return False
        pairs = zip(self.lines(), other.lines(), strict=True)
        return all(canonical_rule(mine) == canonical_rule(theirs) for mine, theirs in pairs)


class GroupRules(_ByMeaning, frozen=True, eq=False, gc=False):
    """The chains of a group with their rules' text, in the order they are shown."""

    chains: Mapping[str, str]

    @property
    def count(self) -> int:
        return sum(text.count("\n") for text in self.chains.values())

    @property
    def size(self) -> int:
        return sum(map(len, self.chains.values()))

    def differing(self, other: GroupRules) -> list[str]:
        """Our chains that the other group lacks or has with other rules."""
        return [
            chain
            for chain, text in self.chains.items()
            if (held := other.chains.get(chain)) is None
            or (held != text and Rules(held) != Rules(text))
        ]

    def means_the_same(self, other: Self) -> bool:
        if self.chains == other.chains:
            return True
        return self.chains.keys() == other.chains.keys() and not self.differing(other)


class GuestRules(_ByMeaning, frozen=True, eq=False, gc=False):
    """Our rules in a guest chain, or (`is_read`) all that was found there.

    Found equals wanted if it holds everything wanted, whatever else the other program put there.
    """

    text: str = ""
    is_read: bool = False

    @property
    def count(self) -> int:
        return self.text.count("\n")

    def means_the_same(self, other: Self) -> bool:
        if self.is_read == other.is_read:
            return self.text == other.text
        read, wanted = (self, other) if self.is_read else (other, self)
        held = set(map(canonical_rule, read.text.splitlines()))
        return held.issuperset(map(canonical_rule, wanted.text.splitlines()))


RuleItem: TypeAlias = Chain | ChainGroup | SharedChain | Section | GuestChain | Jump
"""Everything a mode may want in the tables of iptables."""

RuleValue: TypeAlias = Rules | GroupRules | GuestRules | ChainState | Position
"""What such an item should be; which type goes with which item is in the table above."""


def rules(chain: str, specs: Iterable[str]) -> Rules:
    """Rules of one chain from what stands behind `-A CHAIN `."""
    return Rules("".join([f"-A {chain} {spec}\n" for spec in specs]))


Identify: TypeAlias = Callable[[str, str, str], Order | None]
"""(table, shared chain, saved rule line) → the section it belongs to, or None if unrecognised."""


def identify_nothing(_table: str, _chain: str, _line: str) -> Order | None:
    """For modes that rewrite their shared chains rather than recognise what is in them."""
    return None


Grouping: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]
"""A table's chains with their rules → for each chain that is of a group, the group's name."""


def group_nothing(_chains: Mapping[str, str]) -> Mapping[str, str]:
    """For modes without groups."""
    return {}


Respell: TypeAlias = Callable[[str], str]
"""A table as iptables-save prints it → the same rules, as far as possible spelled as rendered."""


def respell_nothing(text: str) -> str:
    """For modes with few rules: comparing them by meaning is quick enough."""
    return text


class Scope(Struct, frozen=True):
    """What belongs to a mode.

    Tables are in the order they are written, and jumps in the order they are inserted. Chains are
    given by name or by prefix. `rival` is another mode with chains of the same names. A new jump
    that goes first stands behind those that lead to a chain in `follows`, if there are any.
    """

    tables: tuple[str, ...]
    chains: Mapping[str, frozenset[str]]
    shared_chains: Mapping[str, frozenset[str]]
    prefixes: Mapping[str, tuple[str, ...]]
    guest_chains: Mapping[str, frozenset[str]] = {}
    jumps: tuple[tuple[Jump, Position], ...] = ()
    identify: Identify = identify_nothing
    group: Grouping = group_nothing
    respell: Respell = respell_nothing
    mode: str = ""
    rival: str = ""
    follows: frozenset[str] = frozenset()

    def has(self, table: str, chain: str) -> bool:
        """Is this a chain of ours, of whatever kind?"""
        return (
            self.owns(table, chain) or self.shares(table, chain) or self.is_guest_of(table, chain)
        )

    def owns(self, table: str, chain: str) -> bool:
        """Is this a chain that one owner of ours fills alone?"""
        return chain in self.chains.get(table, ()) or chain.startswith(self.prefixes.get(table, ()))

    def shares(self, table: str, chain: str) -> bool:
        """Is this one of our chains made of sections?"""
        return chain in self.shared_chains.get(table, ())

    def is_guest_of(self, table: str, chain: str) -> bool:
        """Is this a chain that another program creates too?"""
        return chain in self.guest_chains.get(table, ())
