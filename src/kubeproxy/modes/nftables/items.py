"""Items and values of this mode. Pure data.

The items are flat: a table, sets, chains with all their rules, single elements, pools, and, with
an option of ours, listeners on the loopback address. A *pool* is the endpoint list of one
frontend: many elements of a shared map that belong together, held as one string of bytes, so that
ten endpoints cost one entry of the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.ids import Protocol
from kubeproxy.kernel.nftables.wire import NFT_SET_EVAL, Hook, Verdict
from kubeproxy.modes.nftables.rules.expressions import Rule

# ---- items -----------------------------------------------------------------------------------


class TableItem(Struct, frozen=True, gc=False):
    """The table itself. There is one for each family."""


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
    """The endpoint list of one frontend in a shared data map. `key` lacks the index."""

    map: str
    key: bytes


class ForeignItem(Struct, frozen=True, gc=False):
    """A flowtable, or an object such as a named counter. We have none, so it goes."""

    name: str
    type: int
    """The kernel's number for the type of an object; 0 is a flowtable."""


class ListenerItem(Struct, frozen=True, gc=False):
    """A node port on the loopback address, served by a relay in user space."""

    protocol: Protocol
    port: int


TABLE = TableItem()

# ---- values ----------------------------------------------------------------------------------


class Table(Struct, frozen=True, gc=False):
    """The table's value. An unusable one was found in a form that cannot be taken over.

    A dormant one is attached to no hook: another process has switched it off.
    """

    is_usable: bool = True
    is_dormant: bool = False


class SetSpec(Struct, frozen=True, gc=False):
    """Declaration of a set or map: types are nft's numbers, lengths are bytes.

    Comments of sets and chains stand in `names.COMMENTS`: the kernel cannot change them later, so
    they are no part of what is compared.
    """

    key_type: int
    key_length: int
    flags: int = 0
    data_type: int = 0
    data_length: int = 0
    timeout_ms: int = 0
    size: int = 0
    has_expressions: bool = False
    """A bound or other expressions are never ours."""
    typeof: bytes = b""
    """What nft has to know about a pool map in order to print it (`rules.typeof`)."""
    counts: bool = False
    """Has every element a counter of the packets that were looked up?"""

    @property
    def is_of_service(self) -> bool:
        """Does the set belong to one service? Such sets are filled by packets, not by us."""
        return bool(self.flags & NFT_SET_EVAL)


class ChainKind(IntEnum):
    """What a chain is for.

    The order is that of building: a rule sends packets only to chains of a smaller kind. What is
    removed goes in the opposite order. Kinds of found chains come from `names.chain_kind`.
    """

    CLASS_PICK = 1  # pick-3: chooses among the endpoints of any service of this class
    CLASS_ENTRY = 2  # external-3: masquerades or short-circuits first
    ENDPOINT = 3  # one endpoint of a service with affinity
    SERVICE_POOL = 4  # chooses among the endpoints of one service with affinity
    SERVICE_ENTRY = 5  # external traffic, or source ranges, of one service
    SCAFFOLD = 6  # always there
    BASE = 7  # always there, attached to a hook

    @property
    def is_of_service(self) -> bool:
        """Does the chain belong to one service, so that it must change together with it?"""
        return ChainKind.ENDPOINT <= self <= ChainKind.SERVICE_ENTRY


class Chain(Struct, frozen=True):
    """A chain with all its rules."""

    kind: ChainKind
    rules: tuple[Rule, ...] = ()
    hook: Hook | None = None


class Element(Struct, frozen=True, gc=False):
    """An element's value: a verdict for verdict maps, nothing for sets."""

    verdict: Verdict | None = None
    comment: str = ""
    has_more: bool = False
    """Has it something that none of ours has, such as a timeout or a limit?"""


class Foreign(Struct, frozen=True, gc=False):
    """The value of a foreign item: it is there."""


class Pool(Struct, frozen=True, gc=False):
    """Endpoints of one frontend: address and port of each, packed, in the order of their index.

    A hole, which only another process can leave, is a slot of zeros.
    """

    slots: bytes


Address: TypeAlias = tuple[str, int]


class Target(Struct, frozen=True):
    """Where a relay connects to. With `affinity_seconds` 0 it chooses for each connection.

    An endpoint may be there several times: it is chosen as often, at random or in turn.
    """

    endpoints: tuple[Address, ...]
    affinity_seconds: int = 0
    is_in_turn: bool = False


Item: TypeAlias = (
    TableItem | SetItem | ChainItem | ElementItem | PoolItem | ForeignItem | ListenerItem
)
Value: TypeAlias = Table | SetSpec | Chain | Element | Pool | Foreign | Target
Fragment: TypeAlias = Mapping[Item, Value]
