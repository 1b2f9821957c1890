"""The expressions of which rules are made, as the kernel keeps them: steps over registers. Pure.

Why: kept in the kernel's own form, "is this what the kernel has" is a plain comparison. Promise:
nothing but data. Leaves to others: which sequences make sense (`pieces`), how nft prints them
(`text`), and their attributes on the wire (`compile.codec`).

Registers, keys, bases and flags are the kernel's numbers, named in `kernel.nftables.wire`.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from kubeproxy.kernel.nftables.wire import Verdict


class Immediate(Struct, frozen=True, gc=False):
    """Put constant bytes into a register."""

    register: int
    value: bytes


class ImmediateVerdict(Struct, frozen=True, gc=False):
    """End the rule with a verdict."""

    verdict: Verdict


class Payload(Struct, frozen=True, gc=False):
    """Load bytes of the packet, counted from the header `base`."""

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
    """Continue only if the register equals (or, `is_unequal`, differs from) the bytes."""

    register: int
    value: bytes
    is_unequal: bool = False


class Bitwise(Struct, frozen=True, gc=False):
    """register := (register & mask) ^ xor, in place."""

    register: int
    mask: bytes
    xor: bytes

    @property
    def length(self) -> int:
        return len(self.mask)


class Lookup(Struct, frozen=True, gc=False):
    """Continue only if the key is in the set.

    `result` is None for a set, the verdict register for a verdict map, and for a data map the
    register that receives the data.
    """

    set: str
    register: int
    result: int | None = None


class Fib(Struct, frozen=True, gc=False):
    """Load the type that the routing table gives an address, which `flags` select."""

    register: int
    flags: int


class Numgen(Struct, frozen=True, gc=False):
    """Load a number below `modulus`: a random one, or one after the other.

    Each rule has a counter of its own.
    """

    register: int
    modulus: int
    is_in_turn: bool = False


class Hash(Struct, frozen=True, gc=False):
    """Load a number below `modulus` that depends on the bytes in another register alone."""

    source: int
    length: int
    register: int
    modulus: int
    seed: int


class Dnat(Struct, frozen=True, gc=False):
    """Rewrite the destination from two registers. Ends the rule and the chain."""

    family: int
    address: int
    port: int


class Masquerade(Struct, frozen=True, gc=False):
    """Rewrite the source to the outgoing interface's address, with a fully random port."""


class Reject(Struct, frozen=True, gc=False):
    """Reply with ICMP, where `code` is the family's "port unreachable"."""

    code: int


class Dynset(Struct, frozen=True, gc=False):
    """Add the key to a set, or refresh its timeout."""

    set: str
    register: int


class Unknown(Struct, frozen=True):
    """An expression found in the kernel that we would never write."""

    name: str
    attributes: tuple[tuple[int, bytes], ...]


Expr: TypeAlias = (
    Immediate
    | ImmediateVerdict
    | Payload
    | MetaLoad
    | MetaSet
    | Ct
    | Compare
    | Bitwise
    | Lookup
    | Fib
    | Numgen
    | Hash
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
