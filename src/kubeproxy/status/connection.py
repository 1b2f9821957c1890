"""One HTTP connection, bounded in memory, work and time.

    reading ──▶ (handling) ──▶ (writing) ──▶ reading …
                                         └─▶ lingering ──▶ closed

- A connection holds at most one request and one response. While a response is not wholly sent or
  a handler runs, nothing is read: a client that pipelines and does not read fills the kernel's
  buffers and then waits.
- After some requests in one go, other connections and other work of the event loop come first
  (`pacing`).
- Every state but handling has a time limit. `connections` enforces it, and closes connections
  when there are too many.

Sockets are used directly instead of asyncio's transports, because a transport reads and buffers
on its own. What the bytes mean is in `http_reader` and `http_wire`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol, TypeAlias

from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import LogLimit
from kubeproxy.status import http_wire as wire
from kubeproxy.status.http_reader import Incoming, RequestReader
from kubeproxy.status.http_wire import Refused, Request, Response
from kubeproxy.status.pacing import Pacing

logger = get_logger(__name__)
_failures = LogLimit()

Handler: TypeAlias = Callable[[Request], Response | Awaitable[Response]]
"""From request to response. A handler that need not wait costs no task."""

READ_BYTES = 16 * 1024
REQUESTS_PER_TURN = 1
HEAD_SECONDS = 30.0
"""How long a client may take to send a request, counted from its first byte or from connecting."""

IDLE_SECONDS = 120.0
"""How long a connection may wait for its next request."""

WRITE_SECONDS = 60.0
"""How long a client may take to receive a response."""

LINGER_SECONDS = 0.5
"""How long a client has to close after the last response, as in Go."""

_NOTHING = memoryview(b"")


class State(Enum):
    READING = "reading"
    HANDLING = "handling"
    WRITING = "writing"
    LINGERING = "lingering"
    CLOSED = "closed"


class Keeper(Protocol):
    """The collection that a connection belongs to: see `connections.Connections`."""

    pacing: Pacing

    def monotonic(self) -> float: ...

    def renewed(self, connection: Connection) -> None: ...

    def grown(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...


class Connection:
    """One accepted socket. `start` it once it is in its collection."""

    def __init__(
        self, sock: socket.socket, handler: Handler, keeper: Keeper, now_ns: Callable[[], int]
    ) -> None:
        self.state = State.READING
        self.deadline = keeper.monotonic() + HEAD_SECONDS
        self.handler = handler
        self._socket = sock
        self._keeper = keeper
        self._now_ns = now_ns
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader()
        self._is_registered = False
        self._has_turn = False
        """Do requests that have arrived wait for their turn?"""
        self._closes = False
        self._unsent = _NOTHING
        self._task: asyncio.Future[Response] | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes in memory on behalf of this client."""
        return self._reader.held_bytes + len(self._unsent)

    @property
    def is_busy(self) -> bool:
        """Does a handler run for this client? Then it is not closed to make room."""
        return self.state is State.HANDLING

    def start(self) -> None:
        """Serve what has arrived already, and then what arrives."""
        self._on_readable()
        self._await_bytes()

    def close(self) -> None:
        """Close at once. Harmless when repeated."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self._stop_reading()
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._reader.clear()
        self._unsent = _NOTHING
        self._keeper.pacing.leave(self)
        if self._task is not None:
            self._task.cancel()
        self._keeper.closed(self)

    # -- reading --

    def _await_bytes(self) -> None:
        wants_bytes = self.state in (State.READING, State.LINGERING) and not self._has_turn
        if wants_bytes and not self._is_registered:
            self._is_registered = True
            self._loop.add_reader(self._socket, self._on_readable)

    def _stop_reading(self) -> None:
        if self._is_registered:
            self._is_registered = False
            self._loop.remove_reader(self._socket)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
        elif self.state is State.READING:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        if self._reader.is_idle:
            self.deadline = self._keeper.monotonic() + HEAD_SECONDS
        self._reader.feed(data)
        self._advance()
        if self._reader.held_bytes:
            self._keeper.grown(self)

    def _advance(self) -> None:
        """Serve requests that are complete, a few at a time, and none while the server rests."""
        pacing = self._keeper.pacing
        if not pacing.is_resting:
            pacing.work(self._serve_some)
        if self.state is State.READING and not self._reader.is_starved:
            self._has_turn = True
            self._stop_reading()
            pacing.wait(self)

    def _serve_some(self) -> None:
        try:
            for _ in range(REQUESTS_PER_TURN):
                incoming = self._reader.next()
                if incoming is None:
                    self._grant_body()
                    return
                self._respond(incoming)
                if self.state is not State.READING:
                    return
        except Refused as refused:
            self._closes = True
            self._send(wire.format_refusal(refused))

    def take_turn(self) -> None:
        """Serve what has waited."""
        self._has_turn = False
        self._go_on()

    def _go_on(self) -> None:
        if self.state is State.READING:
            self._advance()
        self._await_bytes()

    def _grant_body(self) -> None:
        if self._reader.owes_continue:
            self._reader.owes_continue = False
            with contextlib.suppress(OSError):
                self._socket.send(wire.CONTINUE)

    # -- handling and writing --

    def _respond(self, incoming: Incoming) -> None:
        self._closes = incoming.closes
        try:
            result = _answer_to_all(incoming.request) or self.handler(incoming.request)
        except Exception as error:
            result = _failed(incoming.request, error)
        if isinstance(result, Response):
            self._send_response(incoming, result)
        else:
            self._wait_for(incoming, result)

    def _wait_for(self, incoming: Incoming, result: Awaitable[Response]) -> None:
        self.state = State.HANDLING
        self._stop_reading()
        self._task = asyncio.ensure_future(result)
        self._task.add_done_callback(lambda task: self._on_handled(incoming, task))

    def _on_handled(self, incoming: Incoming, task: asyncio.Future[Response]) -> None:
        self._task = None
        if self.state is State.CLOSED or task.cancelled():
            self.close()
            return
        error = task.exception()
        response = task.result() if error is None else _failed(incoming.request, error)
        self._send_response(incoming, response)
        self._go_on()

    def _send_response(self, incoming: Incoming, response: Response) -> None:
        head, now_ns = incoming.head, self._now_ns()
        self._send(wire.format_response(response, head, now_ns, closes=incoming.closes))

    def _send(self, data: bytes | memoryview) -> None:
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent == len(data):
            self._sent()
            return
        self._unsent = memoryview(data)[sent:]
        if self.state is not State.WRITING:
            self.state = State.WRITING
            self.deadline = self._keeper.monotonic() + WRITE_SECONDS
            self._stop_reading()
            self._loop.add_writer(self._socket, self._on_writable)
            self._keeper.grown(self)

    def _on_writable(self) -> None:
        self._send(self._unsent)
        self._go_on()

    def _sent(self) -> None:
        """Wait for the next request, or for the client to close after the last response."""
        if self.state is State.WRITING:
            self._loop.remove_writer(self._socket)
        self._unsent = _NOTHING
        if self._closes:
            self._linger()
            return
        self.state = State.READING
        seconds = IDLE_SECONDS if self._reader.is_idle else HEAD_SECONDS
        self.deadline = self._keeper.monotonic() + seconds
        self._keeper.renewed(self)

    def _linger(self) -> None:
        """Let the client close: closing with unread bytes resets, and the client loses the rest."""
        self.state = State.LINGERING
        self.deadline = self._keeper.monotonic() + LINGER_SECONDS
        self._reader.clear()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()


def _answer_to_all(request: Request) -> Response | None:
    """Return the response to `OPTIONS *`, which asks about the server and not about a path."""
    if (request.method, request.path) == ("OPTIONS", "*"):
        return Response(b"")
    return None


def _failed(request: Request, error: BaseException) -> Response:
    """Return the response after an exception in a handler."""
    if _failures.is_due(request.path):
        text = f"{type(error).__name__}: {error}"
        logger.error(text, "HTTP request failed", method=request.method, path=request.path[:100])
    return Response(b"internal error\n", 500, (("Content-Type", "text/plain; charset=utf-8"),))
