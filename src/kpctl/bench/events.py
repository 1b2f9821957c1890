"""When the API server told the node of a change: its packets, stamped by the kernel.

A watcher of our own would be told at about the same time as the proxy, but may well be slower to
notice than the proxy is to act. The packet that carries the event has a time of arrival that
depends on neither. What is inside is encrypted; between single changes nothing else of this size
is sent.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from kpctl.bench.moments import Moments
from kpctl.places.network import PrivateNetwork

LEAST_BYTES = 200
"""An event with one object is larger; a ping or an acknowledgement of the connection is smaller."""

_ETH_P_IP = 0x0800
_SO_TIMESTAMPNS = 35
_TCP = 6
_TIMESPEC = struct.Struct("@qq")


class Line(msgspec.Struct, frozen=True, gc=False):
    """Where an API server's words arrive: the node's device, and the port they come from."""

    device: str
    port: int


@contextmanager
def told_events(node: PrivateNetwork, line: Line) -> Iterator[Moments]:
    """Moments at which the API server's words reached a node."""
    with node.inside():
        packets = socket.socket(
            socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, socket.htons(_ETH_P_IP)
        )
        packets.bind((line.device, _ETH_P_IP))
    packets.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    moments = Moments()
    loop = asyncio.get_running_loop()
    loop.add_reader(packets, _take, packets, line.port, moments)
    try:
        yield moments
    finally:
        loop.remove_reader(packets)
        packets.close()


def _take(packets: socket.socket, port: int, moments: Moments) -> None:
    # The kernel's stamps are of the wall clock; all else here is monotonic.
    offset = time.monotonic() - time.time()
    try:
        while True:
            data, ancillary, _, _ = packets.recvmsg(128, 64, socket.MSG_TRUNC)
            stamp = next((raw for _, kind, raw in ancillary if kind == _SO_TIMESTAMPNS), None)
            if stamp is not None and is_event(data, port):
                seconds, nanoseconds = _TIMESPEC.unpack_from(stamp)
                moments.add(seconds + nanoseconds / 1e9 + offset)
    except BlockingIOError:
        return


def is_event(packet: bytes, port: int) -> bool:
    """Is this (beginning of an) IPv4 packet a piece of the API server's answer?"""
    if len(packet) < 20 or packet[9] != _TCP:
        return False
    start = (packet[0] & 15) * 4
    if len(packet) < start + 20:
        return False
    total, (source,) = int.from_bytes(packet[2:4], "big"), struct.unpack_from("!H", packet, start)
    payload = total - start - (packet[start + 12] >> 4) * 4
    return bool(source == port and payload >= LEAST_BYTES)
