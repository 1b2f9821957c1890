"""Small HTTP servers: one listening address each, and a handler.

Handlers are functions from `Request` to `Response`. `HttpServer` binds its address (again every
five seconds while that fails, or only once if a failure shall end the program) and serves until
cancelled. Connections and their limits are in `connections`, the bytes in `http_wire`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import msgspec

from kubeproxy.errors import ProxyError
from kubeproxy.facts.address import join_host_port
from kubeproxy.go.hostport import split_host_port
from kubeproxy.logs import get_logger
from kubeproxy.status.connection import Handler
from kubeproxy.status.connections import Connections, Listener
from kubeproxy.status.http_wire import Request, Response
from kubeproxy.status.listen import ListenError, listen

__all__ = ["Handler", "HttpServer", "Request", "Response", "ServeError", "ServerRole"]

logger = get_logger(__name__)

RETRY_SECONDS = 5.0
TEXT = ("Content-Type", "text/plain; charset=utf-8")
JSON = ("Content-Type", "application/json")
HTML = ("Content-Type", "text/html; charset=utf-8")
NOSNIFF = ("X-Content-Type-Options", "nosniff")


class ServeError(ProxyError):
    """A server that must run cannot, so the program ends. `event_reason` is the Node event's."""

    def __init__(self, message: str, event_reason: str) -> None:
        super().__init__(message)
        self.event_reason = event_reason


class ServerRole(msgspec.Struct, frozen=True, gc=False):
    """The texts with which one server reports its failures. They are upstream's."""

    log_message: str
    listen_prefix: str
    fatal_prefix: str
    event_reason: str


def text(body: str, status: int = 200) -> Response:
    """Return a response of plain text."""
    return Response(body.encode(), status, (TEXT, NOSNIFF))


def redirect(location: str) -> Response:
    """Return Go's response that sends the client to another path."""
    target = quote(location, safe="/%?=&+,;:@!$'()*~")
    body = f'<a href="{target}">Temporary Redirect</a>.\n\n'
    return Response(body.encode(), 307, (HTML, ("Location", target)))


def not_found() -> Response:
    """Return Go's response for a path that does not exist."""
    return text("404 page not found\n", 404)


class HttpServer:
    """One listening address and its handler."""

    def __init__(
        self,
        role: ServerRole,
        address: str,
        handler: Handler,
        *,
        hard_fail: bool = False,
        is_taken: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`is_taken`: does a process serve at the address that will end? Then failures are none."""
        self._role = role
        self._address = address
        self._handler = handler
        self._hard_fail = hard_fail
        self._is_taken = is_taken
        self._sleep = sleep
        self.port = 0
        """The port that was bound, which differs from the address if that has port 0."""
        self.is_serving = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled. Raises ServeError if binding fails and `hard_fail` is set."""
        host, port = split_host_port(self._address)
        sock = None
        while sock is None:
            try:
                sock = listen("tcp", host, int(port))
            except ListenError as error:
                if not self._is_taken():
                    self._report(error)
                await self._sleep(RETRY_SECONDS)
        with sock:
            self.port = sock.getsockname()[1]
            await self._serve(sock)

    def _report(self, error: ListenError) -> None:
        message = self._role.listen_prefix.format(address=self._address) + str(error)
        logger.error(ListenError(message), self._role.log_message)
        if self._hard_fail:
            raise ServeError(self._role.fatal_prefix + message, self._role.event_reason) from error

    async def _serve(self, sock: socket.socket) -> None:
        listener = Listener(sock, self._handler, Connections())
        try:
            listener.start()
            host, port = sock.getsockname()[:2]
            logger.v(3).info("Started HTTP server", address=join_host_port(host, port))
            self.is_serving.set()
            await asyncio.Event().wait()
        finally:
            self.is_serving.clear()
            listener.close()
