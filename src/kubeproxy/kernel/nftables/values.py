"""Tables, chains, rules, sets and elements as values: what is packed, and what a dump shows."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from kubeproxy.kernel.nftables.numbers import NF_ACCEPT, NF_DROP, NFT_RETURN


class Verdict(Struct, frozen=True, gc=False):
    """Where a packet goes. `chain` is set for jump and goto."""

    code: int
    chain: str = ""


DROP = Verdict(NF_DROP)
RETURN = Verdict(NFT_RETURN)


class Hook(Struct, frozen=True, gc=False):
    """Where a base chain is attached, and what becomes of packets on which no rule decides."""

    type: str
    number: int
    priority: int
    policy: int = NF_ACCEPT


class TableInfo(Struct, frozen=True, gc=False):
    """A table as dumped."""

    family: int
    name: str
    comment: str
    flags: int = 0


class ChainInfo(Struct, frozen=True, gc=False):
    """A chain as dumped."""

    table: str
    name: str
    hook: Hook | None
    comment: str
    flags: int = 0


class ExpressionInfo(Struct, frozen=True):
    """One expression of a rule as dumped: its name and raw attributes."""

    name: str
    attributes: Mapping[int, bytes]


class RuleInfo(Struct, frozen=True):
    """A rule as dumped."""

    table: str
    chain: str
    handle: int
    expressions: tuple[ExpressionInfo, ...]
    comment: str


class SetInfo(Struct, frozen=True, gc=False):
    """A set or map, as declared and as dumped. `timeout_ms` 0 is none."""

    table: str
    name: str
    flags: int
    key_type: int
    key_length: int
    data_type: int = 0
    data_length: int = 0
    timeout_ms: int = 0
    comment: str = ""
    size: int = 0
    """The most elements it may have, or 0."""
    counts: bool = False
    """Has every element a counter?"""
    has_expressions: bool = False
    """Does every element come with other expressions, such as a limit?"""
    typeof: bytes = b""
    """User data that names the expressions its types are taken from, for nft to read."""
    count: int | None = None
    """How many elements there are, where the kernel tells: since Linux 6.16."""


class ElementInfo(Struct, frozen=True, gc=False):
    """An element as dumped: key, and data or a verdict for maps. The catch-all has no key."""

    key: bytes
    data: bytes
    verdict: Verdict | None
    comment: str
    has_more: bool = False
    """Has it something else, such as flags, a timeout, or other expressions?"""
    packets: int | None = None
    """What its counter has counted, if it has one."""


class ObjectInfo(Struct, frozen=True, gc=False):
    """A named counter, quota, limit and the like, or a flowtable, which has type 0."""

    table: str
    name: str
    type: int = 0
