"""Which sockets are open in the current network namespace, as far as /proc shows them.

TCP sockets that listen, and UDP sockets that are bound. One on all addresses counts for each.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.modes.base import OpenSocket

_LISTEN, _UNCONNECTED = "0A", "07"
_FILES = {
    Family.IPV4: (("tcp", Protocol.TCP, _LISTEN), ("udp", Protocol.UDP, _UNCONNECTED)),
    Family.IPV6: (("tcp6", Protocol.TCP, _LISTEN), ("udp6", Protocol.UDP, _UNCONNECTED)),
}


class Listening:
    """The sockets of one family; a wanted one is `in` it if something is open there."""

    def __init__(self, family: Family, found: frozenset[OpenSocket]) -> None:
        self._wildcard = family.wildcard
        self.found = found

    def __contains__(self, place: object) -> bool:
        if not isinstance(place, OpenSocket):
            return False
        everywhere = OpenSocket(place.protocol, self._wildcard, place.port)
        return place in self.found or everywhere in self.found


def open_sockets(family: Family, proc: Path = Path("/proc/thread-self/net")) -> Listening:
    """Read what is open now. A file that is not there, such as without IPv6, has nothing."""
    found: set[OpenSocket] = set()
    for name, protocol, state in _FILES[family]:
        try:
            text = (proc / name).read_text()
        except OSError:
            continue
        found |= {OpenSocket(protocol, *place) for place in parse_sockets(text, state)}
    return Listening(family, frozenset(found))


def parse_sockets(text: str, state: str) -> Iterator[tuple[str, int]]:
    """Local addresses and ports of the sockets in one state, from a file such as /proc/net/tcp."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == state:
            address, _, port = fields[1].partition(":")
            yield _address(bytes.fromhex(address)), int(port, 16)


def _address(raw: bytes) -> str:
    """Each four bytes are a number in host order."""
    words = struct.unpack(f"={len(raw) // 4}I", raw)
    packed = struct.pack(f">{len(words)}I", *words) if raw else b""
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, packed)
