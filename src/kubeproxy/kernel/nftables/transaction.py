"""Messages that take effect together, and where the kernel refused one of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import ATTR_HEADER_LENGTH, HEADER_LENGTH, NFGEN_LENGTH
from kubeproxy.kernel.nftables.numbers import (
    DELSETELEM,
    NEWSETELEM,
    NFNL_MSG_BATCH_BEGIN,
    NFNL_MSG_BATCH_END,
    NFNL_SUBSYS_NFTABLES,
    NFTA_SET_ELEM_LIST_ELEMENTS,
    SUBSYSTEM,
)
from kubeproxy.kernel.nftables.parsing import parse_element, printable


class Refusal(Struct, frozen=True, gc=False):
    """One message of a transaction that the kernel refused."""

    label: str
    errno: int
    text: str
    position: int
    """Position of the message in the transaction."""
    offset: int
    """Where in the message, headers included, the offending attribute starts, or 0."""


class Transaction:
    """Messages that take effect together, each labelled with the object it concerns.

    Before one with `after_readers` takes effect, packets under way must be done that may have read
    what the transactions before it have changed.
    """

    def __init__(self, family: int, *, after_readers: bool = False) -> None:
        self.after_readers = after_readers
        self._head = codec.nfgen(family)
        self._parts: list[bytes] = []
        self.labels: list[str] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, kind: int, body: bytes, label: str, flags: int = 0) -> None:
        """Append one message. Its sequence number is its position, counted from one."""
        packed = codec.message(
            SUBSYSTEM | kind, flags | codec.NLM_F_REQUEST, len(self._parts) + 1, self._head + body
        )
        self._parts.append(packed)
        self.labels.append(printable(label))
        self.size += len(packed)

    def pack(self, *, is_dry_run: bool = False) -> bytes:
        """The datagram. Without its end mark the kernel checks everything and rolls back."""
        mark = codec.nfgen(0, NFNL_SUBSYS_NFTABLES)
        begin = codec.message(NFNL_MSG_BATCH_BEGIN, codec.NLM_F_REQUEST, 0, mark)
        end = codec.message(NFNL_MSG_BATCH_END, codec.NLM_F_REQUEST, 0, mark)
        return b"".join((begin, *self._parts, b"" if is_dry_run else end))

    def element_key_at(self, position: int, offset: int) -> bytes | None:
        """Key of the element that lies at an offset of a message, where there is one."""
        if not offset or not 0 <= position < len(self._parts):
            return None
        return element_key_at(self._parts[position], offset)


def element_key_at(packed: bytes, offset: int) -> bytes | None:
    """Key of the element that covers `offset` of a packed message.

    None if the message is no list of elements or the offset is in none of them.
    """
    if codec.u16(packed[4:6]) & 0xFF not in (NEWSETELEM, DELSETELEM):
        return None
    for kind, start, end in _spans(packed, HEADER_LENGTH + NFGEN_LENGTH, len(packed)):
        if kind == NFTA_SET_ELEM_LIST_ELEMENTS:
            for _, first, last in _spans(packed, start, end):
                if first - ATTR_HEADER_LENGTH <= offset < last:
                    return parse_element(packed[first:last]).key
    return None


def _spans(packed: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Kind, start and end of the payload of each attribute in a part of a message."""
    while start + ATTR_HEADER_LENGTH <= end:
        length = codec.u16(packed[start : start + 2])
        kind = codec.u16(packed[start + 2 : start + 4]) & codec.NLA_TYPE_MASK
        yield kind, start + ATTR_HEADER_LENGTH, start + length
        start += codec.align(length)
