"""Flows for a conntrack table, and what a table holds; and a netlink socket with faults."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Callable
from typing import Any

from kpctl.places.flows import NewFlow, format_flow
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.conntrack.table import Conntrack
from kubeproxy.kernel.conntrack.wire import IPCTNL_MSG_CT_DELETE
from kubeproxy.kernel.netlink import codec

Place = tuple[str, int]


def packed(address: str, port: int) -> bytes:
    return ipaddress.ip_address(address).packed + port.to_bytes(2, "big")


def flow(
    destination: Place,
    reply_source: Place,
    *,
    source_port: int = 40000,
    protocol: Protocol = Protocol.UDP,
    zone: int = 0,
) -> NewFlow:
    """A flow of a client outside, translated from destination to reply source."""
    client = "2001:db8::1" if ":" in destination[0] else "192.0.2.1"
    return NewFlow(
        packed(client, source_port),
        packed(*destination),
        packed(*reply_source),
        protocol=protocol,
        zone=zone,
    )


def entry(destination: Place, reply_source: Place, **kwargs: Any) -> bytes:
    """The attributes of such a flow, as in a request and nearly as in a listing."""
    return format_flow(flow(destination, reply_source, **kwargs))


def listed(
    family: Family = Family.IPV4, destination: bytes = b"", protocol: Protocol = Protocol.UDP
) -> set[tuple[bytes, bytes]]:
    """Original destination and reply source of the flows in the current namespace."""
    with Conntrack(family) as table:
        found = [each for flows in table.listing(protocol, destination) for each in flows]
    return {(each.destination, each.reply_source) for each in found}


class Faults:
    """What goes wrong between a program and the kernel. Each fault happens once.

    `receive` are error numbers of reads, `interrupted` counts listings that the kernel marks as
    inconsistent, and `refuse` are error numbers with which deletions are answered, one for each
    datagram of deletions; the kernel does not get those. `received` counts bytes.
    """

    def __init__(self) -> None:
        self.receive: list[int] = []
        self.interrupted = 0
        self.refuse: list[int] = []
        self.received = 0
        self.largest = 0

    def around(self, opened: Callable[[int], socket.socket]) -> Callable[[int], FaultySocket]:
        """The function that opens sockets, with faults."""
        return lambda protocol: FaultySocket(opened(protocol), self)


class FaultySocket:
    """A netlink socket between which and the kernel something goes wrong."""

    def __init__(self, real: socket.socket, faults: Faults) -> None:
        self._real = real
        self._faults = faults
        self._replies: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def send(self, data: bytes) -> int:
        messages = list(codec.iter_messages(data))
        if self._faults.refuse and messages[0].type == IPCTNL_MSG_CT_DELETE:
            number = struct.pack("=i", -self._faults.refuse.pop(0))
            self._replies += [
                codec.message(
                    codec.NLMSG_ERROR, 0, m.seq, number + codec.message(m.type, 0, m.seq, b"")
                )
                for m in messages
            ]
            return len(data)
        return self._real.send(data)

    def recv_into(self, view: memoryview) -> int:
        if self._replies:
            reply = self._replies.pop(0)
            view[: len(reply)] = reply
            return len(reply)
        if self._faults.receive:
            number = self._faults.receive.pop(0)
            raise OSError(number, "injected")
        length = self._real.recv_into(view)
        self._faults.received += length
        self._faults.largest = max(self._faults.largest, length)
        if self._faults.interrupted:
            self._faults.interrupted -= 1
            flags = struct.unpack_from("=H", view, 6)[0] | codec.NLM_F_DUMP_INTR
            struct.pack_into("=H", view, 6, flags)
        return length
