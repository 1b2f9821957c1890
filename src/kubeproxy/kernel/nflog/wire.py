"""nfnetlink_log messages as bytes: binding a group, and logged packets. Pure.

The TRACE target of iptables-legacy logs a packet once for each rule, to group 0.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from kubeproxy.kernel.netlink.codec import (
    NFGEN_LENGTH,
    Message,
    attr,
    attr_be32,
    nfgen,
    parse_attrs,
    text,
)

# nfnetlink.h, nfnetlink_log.h
SUBSYSTEM = 4 << 8
NFULNL_MSG_PACKET, NFULNL_MSG_CONFIG = 0, 1
NFULA_CFG_CMD, NFULA_CFG_MODE, NFULA_CFG_QTHRESH = 1, 2, 5
NFULNL_CFG_CMD_BIND = 1
NFULNL_COPY_PACKET = 2
NFULA_PAYLOAD, NFULA_PREFIX = 9, 10


class LoggedPacket(Struct, frozen=True, gc=False):
    """A packet with the prefix under which it was logged. `payload` begins with its IP header."""

    prefix: str
    payload: bytes


def bind_body(group: int, copy_bytes: int) -> bytes:
    """Body that binds a group to the sending socket; each packet is sent at once."""
    mode = struct.pack(">IBx", copy_bytes, NFULNL_COPY_PACKET)
    return (
        nfgen(0, group)
        + attr(NFULA_CFG_CMD, bytes((NFULNL_CFG_CMD_BIND,)))
        + attr(NFULA_CFG_MODE, mode)
        + attr_be32(NFULA_CFG_QTHRESH, 1)
    )


def parse_packet(message: Message) -> LoggedPacket | None:
    """The logged packet in a message, or None if it is none."""
    if message.type != SUBSYSTEM | NFULNL_MSG_PACKET:
        return None
    found = parse_attrs(message.body, NFGEN_LENGTH)
    return LoggedPacket(text(found.get(NFULA_PREFIX, b"")), found.get(NFULA_PAYLOAD, b""))
