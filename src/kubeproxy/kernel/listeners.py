"""Whose processes listen on a TCP port of this network namespace, as /proc/net/tcp shows it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_FILES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"


def listens_for_root(port: int) -> bool:
    """Does a process of root's or of our own user listen on this port? Raises OSError."""
    return any(user in (0, os.geteuid()) for name in _FILES for user in _users(name, port))


def _users(name: str, port: int) -> Iterator[int]:
    path = Path(name)
    if path.exists():  # a kernel may have no IPv6
        with path.open() as lines:
            yield from listening_users(lines, port)


def listening_users(lines: Iterable[str], port: int) -> Iterator[int]:
    """The users of the sockets that listen on this port. Pure."""
    for line in lines:
        fields = line.split()
        if fields[0] == "sl":
            continue
        if fields[3] != _LISTENS:
            return  # those that listen come first; of the others there may be hundred thousands
        if int(fields[1].rpartition(":")[2], 16) == port:
            yield int(fields[7])
