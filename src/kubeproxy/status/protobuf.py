"""The few protobuf encodings we write: metric families and profiles.

Both formats are small and fixed. A protobuf runtime would cost more to import than it saves.
Encoding only. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_VARINT, _FIXED64, _BYTES = 0, 1, 2


def varint(value: int) -> bytes:
    """Encode a base-128 number, low bits first. Negative numbers become 64-bit two's complement."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_field(number: int, value: int) -> bytes:
    return varint(number << 3 | _VARINT) + varint(value)


def double_field(number: int, value: float) -> bytes:
    return varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def message_field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(body)) + body


def text_field(number: int, text: str) -> bytes:
    return message_field(number, text.encode())


def packed_field(number: int, values: Iterable[int]) -> bytes:
    return message_field(number, b"".join(map(varint, values)))
