"""How big the tables of iptables-legacy are, asked of the kernel without a tool.

Why: iptables-legacy has no notifications, and listing a table takes a process and a copy of all its
rules. The number of entries and of bytes is one system call of a few microseconds, and nearly every
edit changes one of them. Leaves to others: what a difference means.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct

from msgspec import Struct

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family

_LEVELS = {Family.IPV4: socket.IPPROTO_IP, Family.IPV6: socket.IPPROTO_IPV6}
_GET_INFO = 64  # IPT_SO_GET_INFO and IP6T_SO_GET_INFO
_INFO = struct.Struct("=32sI5I5III")  # struct ipt_getinfo: name, hooks and offsets, then these two
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
        # Python's getsockopt hands nothing to the kernel, but the name of the table must go in.
        buffer = ctypes.create_string_buffer(table.encode(), _INFO.size)
        length = ctypes.c_uint32(_INFO.size)
        if _libc.getsockopt(
            self._socket.fileno(), self._level, _GET_INFO, buffer, ctypes.byref(length)
        ):
            number = ctypes.get_errno()
            if number in _ABSENT:
                return None
            raise KernelError(f"size of table {table}: {os.strerror(number)}", errno=number)
        entries, size = _INFO.unpack(buffer.raw)[-2:]
        return TableInfo(entries, size)
