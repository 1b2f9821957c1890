"""Which packets carry an event."""

import struct

import pytest

from kpctl.bench.events import LEAST_BYTES, is_event

PORT = 6443


def packet(*, source: int = PORT, payload: int = LEAST_BYTES, protocol: int = 6) -> bytes:
    """The headers of a packet with so many bytes behind them."""
    total = 20 + 32 + payload
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, total, 0, 0, 64, protocol, 0, b"abcd", b"efgh")
    tcp = struct.pack("!HHIIBBHHH", source, 40000, 0, 0, 8 << 4, 0x18, 0, 0, 0) + bytes(12)
    return ip + tcp


def test_the_api_servers_words_are_events() -> None:
    """A TCP packet from its port with enough inside."""
    assert is_event(packet(), PORT)


@pytest.mark.parametrize(
    "other",
    [
        packet(source=443),
        packet(payload=LEAST_BYTES - 1),
        packet(protocol=17),
        packet()[:30],
        b"",
    ],
)
def test_everything_else_is_not(other: bytes) -> None:
    """Other ports, pings of the connection, other protocols, fragments of a header."""
    assert not is_event(other, PORT)
