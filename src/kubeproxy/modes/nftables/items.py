"""Items and values of this mode, and the expressions rules are made of.

The items are flat: a table, sets, chains with all their rules, single elements, and pools. A
*pool* is the endpoint list of one frontend: many elements of a shared map that belong together,
held as one string of bytes, so that ten endpoints cost one entry of the ledger.

Rules are kept as the kernel keeps them, as a sequence of expressions over registers. That makes
"is this what the kernel has" a plain comparison; `text` prints them the way `nft` does.

Pure data: no behaviour, no I/O.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

# ---- expressions -----------------------------------------------------------------------------


class Verdict(Struct, frozen=True, gc=False):
    """Where a packet goes: `chain` for jump and goto."""

    code: int
    chain: str = ""


DROP = Verdict(0)
RETURN = Verdict(-5)
JUMP_CODE = -3
GOTO_CODE = -4


def jump(chain: str) -> Verdict:
    return Verdict(JUMP_CODE, chain)


def goto(chain: str) -> Verdict:
    return Verdict(GOTO_CODE, chain)


class Immediate(Struct, frozen=True, gc=False):
    """Put constant bytes into a register."""

    register: int
    value: bytes


class Decide(Struct, frozen=True, gc=False):
    """End the rule with a verdict."""

    verdict: Verdict


class Payload(Struct, frozen=True, gc=False):
    """Load bytes of the packet: base 1 is the network header, 2 the transport header."""

    register: int
    base: int
    offset: int
    length: int


class MetaLoad(Struct, frozen=True, gc=False):
    """Load packet metadata."""

    register: int
    key: int


class MetaSet(Struct, frozen=True, gc=False):
    """Set packet metadata from a register."""

    key: int
    register: int


class Ct(Struct, frozen=True, gc=False):
    """Load connection tracking data."""

    register: int
    key: int


class Compare(Struct, frozen=True, gc=False):
    """Go on only if the register equals (or, `is_unequal`, differs from) the bytes."""

    register: int
    value: bytes
    is_unequal: bool = False


class Bitwise(Struct, frozen=True, gc=False):
    """register := (register & mask) ^ xor, in place."""

    register: int
    mask: bytes
    xor: bytes


class Lookup(Struct, frozen=True, gc=False):
    """Go on only if the key is in the set; a verdict map decides, a data map fills `result`."""

    set: str
    register: int
    result: int | None = None


class Fib(Struct, frozen=True, gc=False):
    """Load the type of the source (1) or destination (2) address as the routing table sees it."""

    register: int
    flags: int


class Numgen(Struct, frozen=True, gc=False):
    """Load a random number below `modulus`."""

    register: int
    modulus: int


class Dnat(Struct, frozen=True, gc=False):
    """Rewrite the destination; ends the rule and the chain."""

    family: int
    address: int
    port: int


class Masquerade(Struct, frozen=True, gc=False):
    """Rewrite the source to the outgoing interface's address, with a fully random port."""


class Reject(Struct, frozen=True, gc=False):
    """Answer with ICMP; `code` is the family's "port unreachable"."""

    code: int


class Dynset(Struct, frozen=True, gc=False):
    """Add the key to a set, or refresh its timeout."""

    set: str
    register: int


class Unknown(Struct, frozen=True):
    """An expression that is none of ours, as found in the kernel."""

    name: str
    attributes: tuple[tuple[int, bytes], ...]


Expr: TypeAlias = (
    Immediate
    | Decide
    | Payload
    | MetaLoad
    | MetaSet
    | Ct
    | Compare
    | Bitwise
    | Lookup
    | Fib
    | Numgen
    | Dnat
    | Masquerade
    | Reject
    | Dynset
    | Unknown
)


class Rule(Struct, frozen=True):
    """One rule of a chain."""

    expressions: tuple[Expr, ...]
    comment: str = ""


# ---- items and their values ------------------------------------------------------------------


class TableItem(Struct, frozen=True, gc=False):
    """The table itself; there is one for each family."""


class SetItem(Struct, frozen=True, gc=False):
    """A set or map of the table."""

    name: str


class ChainItem(Struct, frozen=True, gc=False):
    """A chain of the table."""

    name: str


class ElementItem(Struct, frozen=True, gc=False):
    """One element of a set or verdict map."""

    set: str
    key: bytes


class PoolItem(Struct, frozen=True, gc=False):
    """The endpoint list of one frontend in a shared data map; `key` lacks the index."""

    map: str
    key: bytes


NftItem: TypeAlias = TableItem | SetItem | ChainItem | ElementItem | PoolItem

TABLE = TableItem()


class Table(Struct, frozen=True, gc=False):
    """The table's value; an unusable one was made by somebody else in a form we cannot adopt."""

    is_usable: bool = True


class SetSpec(Struct, frozen=True, gc=False):
    """Declaration of a set or map: types are nft's numbers, lengths are bytes.

    Comments of sets and chains stand in `names.COMMENTS`: the kernel cannot change them later,
    so they are no part of what is compared.
    """

    key_type: int
    key_length: int
    flags: int = 0
    data_type: int = 0
    data_length: int = 0
    timeout_ms: int = 0


class Hook(Struct, frozen=True, gc=False):
    """Where a base chain sits."""

    type: str
    number: int
    priority: int


class Chain(Struct, frozen=True):
    """A chain with all its rules."""

    rules: tuple[Rule, ...] = ()
    hook: Hook | None = None


class Element(Struct, frozen=True, gc=False):
    """An element's value: a verdict for verdict maps, nothing for sets."""

    verdict: Verdict | None = None
    comment: str = ""


class Pool(Struct, frozen=True, gc=False):
    """Endpoints of one frontend: address and port of each, packed, in the order of their index.

    A hole, which only a foreign hand can leave, is a slot of zeros.
    """

    slots: bytes


NftValue: TypeAlias = Table | SetSpec | Chain | Element | Pool
