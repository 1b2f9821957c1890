"""The inspection API on a Unix socket: read-only, for the user the daemon runs as.

Nothing here is on the network. The socket's mode is 0600 from the moment it exists. A socket that
a killed process left is replaced; one that another process serves is left alone. Where it cannot be
made, the proxy serves all the same, and tries again now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import ServiceName
from kubeproxy.go.text import format_os_error
from kubeproxy.inspection.pages import Pages
from kubeproxy.inspection.types import VERSION
from kubeproxy.logs import get_logger
from kubeproxy.status.connections import Connections, Listener
from kubeproxy.status.http import JSON, Handler, Request, Response, not_found, text

logger = get_logger(__name__)

RETRY_SECONDS = 30.0
MOST_CONNECTIONS = 16


def inspection_handler(pages: Pages) -> Handler:
    """Return the handler of the inspection API."""
    root = f"/{VERSION}/"
    plain: dict[str, Callable[[], object]] = {
        "status": pages.status,
        "history": pages.history,
    }

    def handle(request: Request) -> Response | Awaitable[Response]:
        if request.method != "GET":
            return text("the inspection API only answers GET\n", 405)
        if not request.path.startswith(root):
            return not_found()
        path = request.path.removeprefix(root)
        if path in plain:
            return _json(plain[path]())
        if path == "connections":
            return _connections(pages, request)
        return _services(pages, path, request)

    return handle


async def _connections(pages: Pages, request: Request) -> Response:
    limit = next(iter(request.query.get("limit", ())), "0")
    if not limit.isdecimal():
        return text("limit is not a number\n", 400)
    try:
        return _json(await pages.connections(int(limit[:9])))
    except KernelError as error:
        return text(f"{error}\n", 503)


def _services(pages: Pages, path: str, request: Request) -> Response:
    match path.split("/"):
        case ["changes"]:
            return _json(pages.changes(next(iter(request.query.get("since", ())), "")))
        case ["services"]:
            cursor = next(iter(request.query.get("cursor", ())), "")
            page = pages.page(cursor) if cursor else pages.first_page()
            if page is None:
                return text("this cursor is not known any more; begin again without one\n", 410)
            return _json(page)
        case ["services", namespace, name]:
            return _json(pages.service(ServiceName(namespace, name)))
    return not_found()


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), 200, (JSON,))


class InspectionServer:
    """Serves the API at one path."""

    def __init__(
        self,
        path: str,
        handler: Handler,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._path = Path(path)
        self._handler = handler
        self._sleep = sleep
        self.is_serving = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        problem = ""
        while True:
            try:
                sock = listen_at(self._path)
            except OSError as error:
                reason = format_os_error(error)
                if reason != problem:
                    message = "Cannot be inspected by kpctl; all else goes on"
                    logger.info(message, socket=str(self._path), err=reason)
                problem = reason
                await self._sleep(RETRY_SECONDS)
                continue
            await self._serve(sock)

    async def _serve(self, sock: socket.socket) -> None:
        listener = Listener(sock, self._handler, Connections(MOST_CONNECTIONS))
        try:
            listener.start()
            self.is_serving.set()
            await asyncio.Event().wait()
        finally:
            self.is_serving.clear()
            listener.close()
            with contextlib.suppress(OSError):
                self._path.unlink()


def listen_at(path: Path) -> socket.socket:
    """Return a socket that listens at the path, for our user only. Raises OSError."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # The file gets the mode of the unbound socket, so that it is never open to others.
        os.fchmod(sock.fileno(), 0o600)
        _remove_stale(path)
        sock.bind(str(path))
        sock.listen(MOST_CONNECTIONS)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    """Remove a socket that no process serves. What is not a socket stays, and binding fails."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except BlockingIOError:
            return  # served, by a process that is busy
