"""One direction of a TCP connection: bytes from one socket to the other, in order, bounded.

Small transfers are copied through user space; once a direction has moved enough to be called bulk,
bytes go through a pipe inside the kernel (splice) and are never copied. Promises: at most one
buffer, or one pipe, waits for a slow reader, and nothing is read while it does; the end of the
stream is passed on as such, after everything before it.

Sockets are watched edge-triggered: `readable` and `writable` are remembered until a call says
otherwise.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket

READ_BYTES = 16_384
SMALL_READ_BYTES = 4_096
BULK_BYTES = 131_072
PIPE_BYTES = 1 << 18
MOST_PIPES = 64
ROUNDS_PER_TURN = 16
WAITING_LIMIT = 32 << 20
"""With more than this waiting for slow readers, less is read at a time."""

_SPLICE_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
_SET_PIPE_SIZE = 1031


class Pipe:
    """A pipe that is empty whenever nobody uses it."""

    __slots__ = ("reader", "writer")

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # the limit for pipes is lower: slower, not wrong
            fcntl.fcntl(self.writer, _SET_PIPE_SIZE, PIPE_BYTES)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class Pipes:
    """A bounded stock of pipes; who gets none copies instead. Counts what waits, too."""

    def __init__(self) -> None:
        self._idle: list[Pipe] = []
        self._made = 0
        self.waiting_bytes = 0

    def take(self) -> Pipe | None:
        if self._idle:
            return self._idle.pop()
        if self._made >= MOST_PIPES:
            return None
        try:
            pipe = Pipe()
        except OSError:
            return None
        self._made += 1
        return pipe

    def give(self, pipe: Pipe, held: int) -> None:
        """Back into stock; a pipe that still holds bytes of somebody is thrown away."""
        if held:
            pipe.close()
            self._made -= 1
        else:
            self._idle.append(pipe)

    @property
    def read_bytes(self) -> int:
        return READ_BYTES if self.waiting_bytes < WAITING_LIMIT else SMALL_READ_BYTES


class Half:
    """Bytes from `source` to `sink`."""

    __slots__ = (
        "_held",
        "_moved",
        "_pending",
        "_pipe",
        "_pipes",
        "is_done",
        "is_hung_up",
        "readable",
        "sink",
        "source",
        "writable",
    )

    def __init__(self, source: socket.socket, sink: socket.socket, pipes: Pipes) -> None:
        self.source = source
        self.sink = sink
        self.readable = False
        self.writable = True
        self.is_hung_up = False
        """Has the source announced its end? Then it must be read to the last byte."""
        self.is_done = False
        self._pipes = pipes
        self._pipe: Pipe | None = None
        self._held = 0
        self._pending = b""
        self._moved = 0

    @property
    def can_move(self) -> bool:
        """Is there something to do that would not block?"""
        waits = self.readable or self._held or self._pending
        return bool(self.writable and waits and not self.is_done)

    def pump(self) -> bool:
        """Move what can be moved in one turn; True if another turn is wanted.

        Raises OSError if either socket is broken.
        """
        for _ in range(ROUNDS_PER_TURN):
            if self._moved > BULK_BYTES and not self._pending:
                self._splice()
            else:
                self._copy()
            if not self.can_move:
                self._drop_idle_pipe()
                return False
        return True

    def _copy(self) -> None:
        if self._pending:
            self._flush()
            return
        wanted = self._pipes.read_bytes
        try:
            data = self.source.recv(wanted)
        except BlockingIOError:
            self.readable = False
            return
        if not data:
            self._end()
            return
        self._moved += len(data)
        if len(data) < wanted and not self.is_hung_up:
            # A short read means the buffer was emptied, so the next byte brings a new edge.
            self.readable = False
        self._send(data)

    def _send(self, data: bytes) -> None:
        try:
            sent = self.sink.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._pending = data[sent:]
            self._pipes.waiting_bytes += len(self._pending)
            self.writable = sent > 0

    def _flush(self) -> None:
        self._pipes.waiting_bytes -= len(self._pending)
        data, self._pending = self._pending, b""
        self._send(data)

    def _splice(self) -> None:
        pipe = self._pipe
        if pipe is None:
            pipe = self._pipe = self._pipes.take()
            if pipe is None:
                self._copy()
                return
        if self._held:
            self._splice_out(pipe)
            return
        try:
            moved = os.splice(self.source.fileno(), pipe.writer, PIPE_BYTES, flags=_SPLICE_FLAGS)
        except BlockingIOError:
            self.readable = False
            return
        if not moved:
            self._end()
            return
        self._held = moved
        self._splice_out(pipe)

    def _splice_out(self, pipe: Pipe) -> None:
        try:
            self._held -= os.splice(
                pipe.reader, self.sink.fileno(), self._held, flags=_SPLICE_FLAGS
            )
        except BlockingIOError:
            self.writable = False

    def _end(self) -> None:
        """The source has ended: say so to the sink."""
        self.is_done = True
        self.readable = False
        with contextlib.suppress(OSError):  # it may have gone already; its own half will tell
            self.sink.shutdown(socket.SHUT_WR)

    def _drop_idle_pipe(self) -> None:
        """A connection that waits for its source keeps no pipe from others."""
        if self._pipe is not None and not self._held:
            self._pipes.give(self._pipe, 0)
            self._pipe = None

    def abandon(self) -> None:
        """The connection is closed: give back what was held."""
        self._pipes.waiting_bytes -= len(self._pending)
        self._pending = b""
        self.is_done = True
        if self._pipe is not None:
            self._pipes.give(self._pipe, self._held)
            self._pipe = None
