"""Sends datagrams to one address as fast as it can, each from another source: all are new flows.

    python flood.py ADDRESS PORT

Sources are taken from 10.200.0.0/13, which must be local. Runs until its standard input ends.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from itertools import count, islice

_IP_PKTINFO = 8
_AT_ONCE = 500
_FIRST_SOURCE, _SOURCES = 0x0AC80000, 1 << 19


def flood(address: str, port: int) -> None:
    numbers = count()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        while not select.select([sys.stdin], [], [], 0)[0]:
            for number in islice(numbers, _AT_ONCE):
                source = struct.pack(">I", _FIRST_SOURCE + number % _SOURCES)
                from_source = struct.pack("=I4s4s", 0, source, source)
                ancillary = [(socket.IPPROTO_IP, _IP_PKTINFO, from_source)]
                try:
                    sender.sendmsg((b"x",), ancillary, 0, (address, port))
                except OSError:
                    continue  # an ICMP answer to an earlier one, or rejected: the rules count


if __name__ == "__main__":
    flood(sys.argv[1], int(sys.argv[2]))
