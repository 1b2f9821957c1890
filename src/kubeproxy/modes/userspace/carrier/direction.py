"""One direction of a TCP connection: bytes from one socket to the other, in order, bounded.

Small transfers are copied through user space; once a direction has moved enough to be called bulk,
bytes go through a pipe inside the kernel (splice) and are never copied. Promises: at most one
buffer, or one pipe, waits for a slow reader, and nothing is read while it does; the end of the
stream is passed on as such, after everything before it.

Sockets are watched edge-triggered: `readable` and `writable` stay true until a call on the socket
would have blocked. They need not be non-blocking: each call says that it must not wait, which
saves a system call per connection.
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
MAX_PIPES = 64
MOVES_PER_CALL = 16
WAITING_LIMIT = 32 << 20
"""With more than this waiting for slow readers, less is read at a time."""

_AT_ONCE = socket.MSG_DONTWAIT
_UNTIL_END = socket.MSG_DONTWAIT | socket.MSG_MORE
"""The kernel may hold back an incomplete segment: the end of the stream follows, and goes with it.

What is held back waits up to 200 ms for more, and is lost if the socket is reset.
"""
_SPLICE_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


class Pipe:
    """A pipe inside the kernel; it is empty whenever it is not in use."""

    __slots__ = ("reader", "writer")

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Beyond the user's limit for pipe memory the size stays as it is: slower, not wrong.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class PipePool:
    """A bounded number of pipes, and the count of bytes that wait for slow readers.

    A direction that gets no pipe copies instead.
    """

    def __init__(self) -> None:
        self._idle: list[Pipe] = []
        self._count = 0
        self.waiting_bytes = 0

    def acquire(self) -> Pipe | None:
        if self._idle:
            return self._idle.pop()
        if self._count >= MAX_PIPES:
            return None
        try:
            pipe = Pipe()
        except OSError:
            return None
        self._count += 1
        return pipe

    def release(self, pipe: Pipe, held: int) -> None:
        """Take a pipe back; one that still holds bytes of a connection is closed instead."""
        if held:
            pipe.close()
            self._count -= 1
        else:
            self._idle.append(pipe)

    @property
    def read_bytes(self) -> int:
        """How much to read at a time."""
        return READ_BYTES if self.waiting_bytes < WAITING_LIMIT else SMALL_READ_BYTES


class Direction:
    """Moves bytes from `source` to `destination`."""

    __slots__ = (
        "_held",
        "_moved",
        "_pending",
        "_pipe",
        "_pipes",
        "destination",
        "is_done",
        "is_ending",
        "is_hung_up",
        "readable",
        "reverse",
        "source",
        "writable",
    )

    def __init__(self, source: socket.socket, destination: socket.socket, pipes: PipePool) -> None:
        self.source = source
        self.destination = destination
        self.readable = False
        self.writable = True
        self.is_hung_up = False
        """Has the source announced its end? Then it must be read to the last byte."""
        self.is_ending = False
        """Is that the end of the stream, not a reset?"""
        self.is_done = False
        self.reverse: Direction | None = None
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
        """Move what can be moved in one call. Return whether there is more to move.

        Raises OSError if either socket is broken.
        """
        for _ in range(MOVES_PER_CALL):
            if self._moved > BULK_BYTES and not self._pending:
                self._splice()
            else:
                self._copy()
            if not self.can_move:
                self._release_idle_pipe()
                return False
        return True

    def _copy(self) -> None:
        if self._pending:
            self._flush()
            return
        wanted = self._pipes.read_bytes
        try:
            data = self.source.recv(wanted, _AT_ONCE)
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
            sent = self.destination.send(data, _UNTIL_END if self.is_ending else _AT_ONCE)
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
            pipe = self._pipe = self._pipes.acquire()
            if pipe is None:
                self._copy()
                return
            self._stop_blocking()
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

    def _stop_blocking(self) -> None:
        """Make both sockets non-blocking: of splice only the pipe can be asked not to wait."""
        for handle in (self.source, self.destination):
            if handle.gettimeout() is None:
                handle.setblocking(False)

    def _splice_out(self, pipe: Pipe) -> None:
        try:
            self._held -= os.splice(
                pipe.reader, self.destination.fileno(), self._held, flags=_SPLICE_FLAGS
            )
        except BlockingIOError:
            self.writable = False

    def _end(self) -> None:
        """Pass the end of the source on to the destination."""
        self.is_done = True
        self.readable = False
        if self.reverse is not None and self.reverse.is_done:
            return  # both sockets are closed next, which says the same
        # The destination may be closed already: the other direction meets the same error.
        with contextlib.suppress(OSError):
            self.destination.shutdown(socket.SHUT_WR)

    def _release_idle_pipe(self) -> None:
        """Release the pipe while there is nothing in it, so that others can use it."""
        if self._pipe is not None and not self._held:
            self._pipes.release(self._pipe, 0)
            self._pipe = None

    def close(self) -> None:
        """Release what is held: the connection is closed. The sockets are the caller's."""
        self._pipes.waiting_bytes -= len(self._pending)
        self._pending = b""
        self.is_done = True
        self.reverse = None
        if self._pipe is not None:
            self._pipes.release(self._pipe, self._held)
            self._pipe = None
