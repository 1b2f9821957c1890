"""What the proxy and its carrier process say to each other, as bytes. Pure.

The proxy sends commands about listeners, with the listening socket as ancillary data of `Open`;
the carrier answers `Sync` when everything before it is done, and may say something for the log.
Frames are a length and a msgpack body; sockets come in the order of their `Open`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeAlias

import msgspec
from msgspec import Struct

from kubeproxy.modes.userspace.carrier.balance import Target

_LENGTH = struct.Struct("=I")


class Balance(Struct, frozen=True, array_like=True):
    """How a listener shares connections out.

    `keep` are the endpoints to which UDP sessions may go on although new ones go elsewhere.
    """

    targets: tuple[Target, ...]
    keep: tuple[Target, ...] = ()
    affinity_seconds: int = 0


class Open(Struct, frozen=True, tag=True):
    """Carry what arrives at the socket that comes with this."""

    number: int
    label: str
    is_udp: bool
    balance: Balance


class Update(Struct, frozen=True, tag=True):
    """Share out differently from now on; connections that exist go on."""

    number: int
    balance: Balance


class Close(Struct, frozen=True, tag=True):
    """Accept nothing more; TCP connections that exist go on, UDP sessions end."""

    number: int


class Sync(Struct, frozen=True, tag=True):
    """Answer when everything before this is done."""

    number: int


class Done(Struct, frozen=True, tag=True):
    """Everything before the `Sync` of this number is done; connections and sessions now."""

    number: int
    connections: int = 0
    sessions: int = 0


class Say(Struct, frozen=True, tag=True):
    """Something an operator should read."""

    text: str
    label: str = ""


Command: TypeAlias = Open | Update | Close | Sync
Answer: TypeAlias = Done | Say

_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Command)
_answers = msgspec.msgpack.Decoder(Answer)


def format_frame(message: Command | Answer) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream into frames, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def commands(self) -> Iterator[Command]:
        for body in self._bodies():
            yield _commands.decode(body)

    def answers(self) -> Iterator[Answer]:
        for body in self._bodies():
            yield _answers.decode(body)

    def _bodies(self) -> Iterator[bytes]:
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + int(_LENGTH.unpack_from(self._buffer)[0])
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield body
