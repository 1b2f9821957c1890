"""The messages between the proxy and its carrier process, as bytes. Pure.

The proxy sends commands about listeners; the listening socket is ancillary data of `OpenListener`.
The carrier replies to `Sync` when everything before it is done, and sends log messages at any time.
A frame is a length and a msgpack body. Sockets arrive in the order of their `OpenListener`.
Both sides are of the same version, so the format needs no compatibility.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.userspace.carrier.balance import Target

_LENGTH = struct.Struct("=I")


class Route(NamedTuple):
    """A service (its label), whether it is UDP, and an endpoint of it."""

    service: str
    is_udp: bool
    target: Target


class Balance(Struct, frozen=True, array_like=True):
    """How a listener distributes connections.

    `keep` are the endpoints to which UDP sessions, and with `drain_seconds` connections, may go on
    although new ones go elsewhere. To all others they may go on for `drain_seconds`; None is for
    ever (TCP) or not at all (UDP).
    """

    targets: tuple[Target, ...]
    keep: tuple[Target, ...] = ()
    affinity_seconds: int = 0
    algorithm: Algorithm | None = None
    """None means in turn, as v1.25 does it."""
    weights: tuple[int, ...] = ()
    """Of the targets; empty means that all are equal."""
    drain_seconds: float | None = None


class OpenListener(Struct, frozen=True, tag=True):
    """Carry what arrives at the socket that comes with this command."""

    number: int
    service: str
    is_udp: bool
    balance: Balance


class UpdateListener(Struct, frozen=True, tag=True):
    """Distribute new connections differently; those that exist go on."""

    number: int
    balance: Balance


class CloseListener(Struct, frozen=True, tag=True):
    """Accept nothing more; TCP connections that exist go on, UDP sessions end."""

    number: int


class Sync(Struct, frozen=True, tag=True):
    """Request a reply when everything before this is done."""

    number: int


class Inspect(Struct, frozen=True, tag=True):
    """Request what is carried at present, with up to `most_flows` connections one by one."""

    number: int
    most_flows: int


class InspectReply(Struct, frozen=True, tag=True):
    """What is carried: per service, protocol and endpoint how many now, and since the start."""

    number: int
    counts: tuple[tuple[Route, int, int], ...] = ()
    flows: tuple[tuple[Route, str], ...] = ()
    is_cut: bool = False


class SyncReply(Struct, frozen=True, tag=True):
    """Everything before the `Sync` of this number is done; with the current counts."""

    number: int
    connections: int = 0
    sessions: int = 0


class LogMessage(Struct, frozen=True, tag=True):
    """A text for the proxy's log, and the service it is about."""

    text: str
    service: str = ""


Command: TypeAlias = OpenListener | UpdateListener | CloseListener | Sync | Inspect
Reply: TypeAlias = SyncReply | InspectReply | LogMessage

_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(Command)
_reply_decoder = msgspec.msgpack.Decoder(Reply)


def format_frame(message: Command | Reply) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Decodes a stream of frames, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def commands(self) -> Iterator[Command]:
        """The commands that have arrived completely, each once."""
        for body in self._bodies():
            yield _command_decoder.decode(body)

    def replies(self) -> Iterator[Reply]:
        """The replies that have arrived completely, each once."""
        for body in self._bodies():
            yield _reply_decoder.decode(body)

    def _bodies(self) -> Iterator[bytes]:
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + int(_LENGTH.unpack_from(self._buffer)[0])
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield body
