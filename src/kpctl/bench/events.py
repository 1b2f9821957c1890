"""When an event of the API server reached a node: the time the kernel stamps on its packets.

A watcher of our own would get the event at about the same time as the proxy, but could be slower to
notice it than the proxy is to act. The packet that carries the event has a time of arrival that
depends on neither. Its content is encrypted, but between single changes nothing else of this size
is sent.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kpctl.bench.moments import Moments
from kpctl.places.network import PrivateNetwork
from kubeproxy.facts.ids import Protocol

LEAST_BYTES = 200
"""An event with one object is larger, a ping or an acknowledgement of the connection smaller."""

LOOPBACK = "lo"

_ETH_P_IP = 0x0800
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")


class Uplink(msgspec.Struct, frozen=True, gc=False):
    """Where an API server's packets arrive: the node's device, and the port they come from."""

    device: str
    port: int


def received_bytes(node: PrivateNetwork, device: str) -> int:
    """The bytes that a device of a node has received, headers included."""
    with node.inside():
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    split = (line.replace(":", " ").split() for line in lines)
    return next(int(fields[1]) for fields in split if fields[0] == device)


@contextmanager
def event_arrivals(node: PrivateNetwork, uplink: Uplink) -> Iterator[Moments]:
    """The times at which events of the API server reach a node."""
    with node.inside():
        packets = socket.socket(
            socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, socket.htons(_ETH_P_IP)
        )
        packets.bind((uplink.device, _ETH_P_IP))
    packets.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    moments = Moments()
    loop = asyncio.get_running_loop()
    loop.add_reader(packets, _take, packets, uplink.port, moments)
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
    """Does this (beginning of an) IPv4 packet carry an event of the API server?"""
    if len(packet) < 20 or packet[9] != Protocol.TCP.number:
        return False
    start = (packet[0] & 15) * 4
    if len(packet) < start + 20:
        return False
    total, (source,) = int.from_bytes(packet[2:4], "big"), struct.unpack_from("!H", packet, start)
    payload = total - start - (packet[start + 12] >> 4) * 4
    return bool(source == port and payload >= LEAST_BYTES)
