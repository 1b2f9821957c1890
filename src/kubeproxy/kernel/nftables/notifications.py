"""Changes as the kernel reports them to its monitors. Pure."""

# ruff: noqa: F403, F405 - every number has the kernel's own name, and they are many

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from kubeproxy.kernel.netlink.codec import NFGEN_LENGTH, Message, attr_str, be, parse_attrs
from kubeproxy.kernel.nftables.numbers import *
from kubeproxy.kernel.nftables.parsing import name, parse_elements, printable


class Notification(Struct, frozen=True, gc=False):
    """One change to an object of a table, as the kernel reports it to its monitors."""

    family: int
    table: str
    kind: int
    name: str
    """The chain or set concerned, empty for the table itself."""
    is_removal: bool
    keys: tuple[bytes, ...] = ()
    """The keys of the elements concerned."""


_REMOVALS = frozenset({DELTABLE, DELCHAIN, DELRULE, DELSET, DELSETELEM, DELOBJ, DELFLOWTABLE})
_ELEMENTS = frozenset({NEWSETELEM, DELSETELEM})
_TABLE_ATTRIBUTE = NFTA_TABLE_NAME  # the same number in messages about any object
_NAME_ATTRIBUTES = {
    NEWCHAIN: NFTA_CHAIN_NAME,
    DELCHAIN: NFTA_CHAIN_NAME,
    NEWRULE: NFTA_RULE_CHAIN,
    DELRULE: NFTA_RULE_CHAIN,
    NEWSET: NFTA_SET_NAME,
    DELSET: NFTA_SET_NAME,
    NEWSETELEM: NFTA_SET_ELEM_LIST_SET,
    DELSETELEM: NFTA_SET_ELEM_LIST_SET,
    NEWOBJ: NFTA_OBJ_NAME,
    DELOBJ: NFTA_OBJ_NAME,
    NEWFLOWTABLE: NFTA_FLOWTABLE_NAME,
    DELFLOWTABLE: NFTA_FLOWTABLE_NAME,
}


def is_of_other_table(message: Message, table: str) -> bool:
    """Does a monitor message concern another table? Quickly, for floods that are not ours.

    The kernel names the table first. Should it ever not, the answer is no.
    """
    ours = _table_name(table)
    first = message.body[NFGEN_LENGTH : NFGEN_LENGTH + len(ours)]
    return first[2:4] == ours[2:4] and first != ours


@lru_cache(maxsize=4)
def _table_name(table: str) -> bytes:
    return attr_str(_TABLE_ATTRIBUTE, table)


def parse_notification(message: Message) -> Notification | None:
    """What a monitor message reports, or None if it is no change to an object."""
    kind = message.type & 0xFF
    is_change = kind in _NAME_ATTRIBUTES or kind in (NEWTABLE, DELTABLE)
    if message.type & ~0xFF != SUBSYSTEM or not is_change:
        return None
    found = parse_attrs(message.body, NFGEN_LENGTH)
    if _TABLE_ATTRIBUTE not in found:
        return None
    concerned = found.get(_NAME_ATTRIBUTES.get(kind, 0), b"")
    table = name(found[_TABLE_ATTRIBUTE])
    listed = found.get(NFTA_SET_ELEM_LIST_ELEMENTS, b"") if kind in _ELEMENTS else b""
    keys = tuple(element.key for element in parse_elements(listed))
    return Notification(message.body[0], table, kind, name(concerned), kind in _REMOVALS, keys)


NEW_GENERATION = SUBSYSTEM | NEWGEN
"""The type of the message that follows the changes of a transaction, from the same port id."""


def parse_committer(message: Message) -> str:
    """Which process committed a transaction, from its message of type `NEW_GENERATION`.

    It reads `nft (process 812)`. The number is that of the host's own process namespace.
    """
    found = parse_attrs(message.body, NFGEN_LENGTH)
    process = f"process {be(found.get(NFTA_GEN_PROC_PID, b''))}"
    command = printable(name(found.get(NFTA_GEN_PROC_NAME, b"")))
    return f"{command} ({process})" if command else process
