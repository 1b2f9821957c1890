"""How big the tables of iptables-legacy are, and which chains they have, without a tool.

Why: iptables-legacy has no notifications, and listing a table takes a process and a copy of all its
rules. The number of entries and of bytes is one system call of a few microseconds, and nearly every
edit changes one of them. To search a table for chains it is copied, but not decoded, and needs no
tool to be installed. Leaves to others: what a difference means.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterable

from msgspec import Struct

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family

_LEVELS = {Family.IPV4: socket.IPPROTO_IP, Family.IPV6: socket.IPPROTO_IPV6}
_GET_INFO = 64  # IPT_SO_GET_INFO and IP6T_SO_GET_INFO
_INFO = struct.Struct("=32sI5I5III")  # struct ipt_getinfo: name, hooks and offsets, then these two
_GET_ENTRIES = 65  # IPT_SO_GET_ENTRIES and IP6T_SO_GET_ENTRIES
_ENTRIES = struct.Struct("@32sI0Q")  # struct ipt_get_entries: name, size; then aligned entries
_CHAIN_HEAD = b"ERROR".ljust(30, b"\0")
"""A chain begins with an entry of this target, whose data is the name of the chain."""
_MOST_ATTEMPTS = 5
_ABSENT = frozenset({errno.ENOENT, errno.ENOPROTOOPT, errno.ESRCH})
_libc = ctypes.CDLL(None, use_errno=True)


class TableInfo(Struct, frozen=True, gc=False):
    """The size of one table."""

    entries: int
    size: int


class XtablesInfo:
    """The tables of one family in the network namespace that is current when this is made."""

    def __init__(self, family: Family) -> None:
        self._level = _LEVELS[family]
        try:
            self._socket = socket.socket(family.af, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        except OSError as error:
            raise KernelError(
                f"cannot ask for iptables: {error}", errno=error.errno or 0
            ) from error

    def close(self) -> None:
        """Close the descriptor. Harmless when repeated."""
        self._socket.close()

    def read(self, table: str) -> TableInfo | None:
        """The size of a table, or None if there is no such table."""
        buffer = bytearray(_INFO.size)
        number = self._get(_GET_INFO, table, buffer)
        if number in _ABSENT:
            return None
        if number:
            raise KernelError(f"size of table {table}: {os.strerror(number)}", errno=number)
        entries, size = _INFO.unpack(buffer)[-2:]
        return TableInfo(entries, size)

    def find_chains(self, table: str, names: Iterable[str]) -> frozenset[str]:
        """Those of these chains that a table has."""
        content = self._content(table)
        return frozenset(n for n in names if _CHAIN_HEAD + n.encode() + b"\0" in content)

    def _content(self, table: str) -> bytearray:
        """The entries of a table as the kernel has them; empty if there is no such table."""
        for _ in range(_MOST_ATTEMPTS):
            info = self.read(table)
            if info is None:
                return bytearray()
            buffer = _room(table, _ENTRIES.size + info.size)
            _ENTRIES.pack_into(buffer, 0, b"", info.size)
            number = self._get(_GET_ENTRIES, table, buffer)
            if not number:
                return buffer
            if number != errno.EAGAIN:  # the size has changed since
                break
        raise KernelError(f"entries of table {table}: {os.strerror(number)}", errno=number)

    def _get(self, option: int, table: str, buffer: bytearray) -> int:
        """Fill a buffer with what the kernel answers. Return the number of an error, or 0."""
        # Python's getsockopt hands nothing to the kernel, but the name of the table must go in.
        buffer[: len(table)] = table.encode()
        filled = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        length = ctypes.c_uint32(len(buffer))
        descriptor = self._socket.fileno()
        if _libc.getsockopt(descriptor, self._level, option, filled, ctypes.byref(length)):
            return ctypes.get_errno()
        return 0


def _room(table: str, size: int) -> bytearray:
    """A table may have tens of megabytes. Where memory is limited, that is no reason to end."""
    try:
        return bytearray(size)
    except MemoryError:
        number = errno.ENOMEM
        text = f"entries of table {table}: {os.strerror(number)} ({size} bytes)"
        raise KernelError(text, errno=number) from None
