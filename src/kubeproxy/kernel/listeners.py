"""Whose processes listen on a TCP port of this network namespace, as /proc/net/tcp shows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kubeproxy.facts.address import pack_address, parse_ip

_FILES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"
_WORD_DIGITS = 8
_ANY_IPV4, _ANY_IPV6 = bytes(4), bytes(16)
_MAPPED = bytes(10) + b"\xff\xff"
"""Begins the IPv6 form of an IPv4 address."""


class Listener(NamedTuple):
    """A socket that listens: its packed address, and the user it belongs to."""

    address: bytes
    user: int


def listens_for_root(address: str, port: int) -> bool:
    """Is it a process of root's or of our own user that is connected to here? Raises OSError.

    A socket with this very address comes before one with all addresses. Others do not count: where
    root listens on one address, any user may take the same port of another.
    """
    parsed = parse_ip(address)
    if parsed is None:
        return False
    found = [listener for name in _FILES for listener in _read(name, port)]
    for place in (pack_address(parsed[1]), _ANY_IPV4, _ANY_IPV6):
        users = {listener.user for listener in found if listener.address == place}
        if users:
            return not users.isdisjoint((0, os.geteuid()))
    return False


def _read(name: str, port: int) -> Iterator[Listener]:
    path = Path(name)
    if path.exists():  # a kernel may have no IPv6
        with path.open() as lines:
            yield from listeners(lines, port)


def listeners(lines: Iterable[str], port: int) -> Iterator[Listener]:
    """The sockets that listen on this port. Pure."""
    for line in lines:
        fields = line.split()
        if fields[0] == "sl":
            continue
        if fields[3] != _LISTENS:
            return  # those that listen come first; of the others there may be hundred thousands
        address, _, number = fields[1].rpartition(":")
        if int(number, 16) == port:
            yield Listener(_unpacked(address), int(fields[7]))


def _unpacked(digits: str) -> bytes:
    """An address as the kernel prints it: words in the byte order of this machine."""
    words = (digits[at : at + _WORD_DIGITS] for at in range(0, len(digits), _WORD_DIGITS))
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    return packed.removeprefix(_MAPPED)
