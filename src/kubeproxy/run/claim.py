"""The right to program a network namespace: one daemon has it, the next one waits for its end.

The holder listens on an abstract Unix socket. Its name belongs to the network namespace, as the
rules do, and is free again when the process ends, however that happens: a claim is never stale. Who
waits connects and is disconnected by the kernel at that moment, so nothing is polled, and the
holder can see that a successor is there. Nothing is ever sent.

Any local user may bind such a name. A holder that is neither root nor of our own user is therefore
ignored: no one can keep a proxy from working.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import struct
import time

_NAME = "\0kubeproxy/claim"
_BACKLOG = 8
_PAUSE_SECONDS = 0.5
_ROOM_SECONDS = 10.0
"""So long a successor has to come in after others were sent away: 20 tries, and on a starved node
one at least. A third of the time that the kubelet gives a pod to end."""
_MOST_REFUSALS = 10
"""So often in a row a holder may refuse to be connected to, before it is ignored."""


class NoClaim(Exception):
    """There can be no claim here; the text is why."""


class Claim:
    """The right, as long as this object is open."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._waiting: list[socket.socket] = []

    def has_successor(self) -> bool:
        """Does another daemon wait for our end at this moment?

        One that cannot be accepted, for want of a file descriptor, is not noticed. Any user may
        have filled the queue: then who found no room in it gets the time to try again.
        """
        deadline = time.monotonic() + _ROOM_SECONDS
        was_full = False
        while True:
            was_full |= self._accept() > _BACKLOG
            if any(not _is_closed(each) for each in self._waiting):
                return True
            left = deadline - time.monotonic()
            if not was_full or left <= 0:
                return False
            _wait_readable(self._listener, left)

    def _accept(self) -> int:
        """Empty the queue. Return how many were in it; those of other users are sent away."""
        count = 0
        with contextlib.suppress(OSError):
            while count <= _BACKLOG:
                connection = self._listener.accept()[0]
                count += 1
                if _is_trusted(connection):
                    self._waiting.append(connection)
                else:
                    connection.close()
        return count

    def close(self) -> None:
        """Give the right up. Harmless when repeated."""
        for each in (self._listener, *self._waiting):
            each.close()
        self._waiting.clear()


def try_claim() -> Claim | None:
    """Take the right, or return None if another process has it. Raises NoClaim."""
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise NoClaim(str(error)) from error
    try:
        listener.bind(_NAME)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise NoClaim(str(error)) from error
    return Claim(listener)


async def wait_for_claim() -> Claim:
    """Take the right as soon as no other process has it. Raises NoClaim."""
    refusals = 0
    while (claim := try_claim()) is None:
        if await _wait_for_holder():
            refusals = 0
            continue
        refusals += 1
        if refusals >= _MOST_REFUSALS:
            raise NoClaim("the process that holds the name does not listen")
        await asyncio.sleep(_PAUSE_SECONDS)
    return claim


async def _wait_for_holder() -> bool:
    """Wait until the holder is gone. Return False if it cannot be connected to at present."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        try:
            connection.connect(_NAME)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # as many as fit are waiting already
            await asyncio.sleep(_PAUSE_SECONDS)
            return True
        if not _is_trusted(connection):
            raise NoClaim("the name is held by a process of another user")
        with contextlib.suppress(ConnectionError):
            await loop.sock_recv(connection, 1)
    return True


def _is_trusted(connection: socket.socket) -> bool:
    """Is the other end root's or ours?"""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", packed)
    return user in (0, os.geteuid())


def _wait_readable(listener: socket.socket, seconds: float) -> None:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.poll(seconds * 1000)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
