"""The dashboard over HTTP: on the loopback address, for the person who started it.

Another user of the machine, or a page of another site in the person's browser, must not read what
is here. So every path begins with a random token that only the person was shown, a request must
name our own address as its host (a foreign name that leads to 127.0.0.1 is refused), and requests
that another site causes are refused. All that is served is read-only, and answers GET only. The
page may load nothing but its own files, and may not make code or markup out of text.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files

import msgspec
from msgspec.structs import replace

from kpctl.dashboard.feed import Feed
from kubeproxy.facts.ids import ServiceName
from kubeproxy.status.connections import Connections, Listener
from kubeproxy.status.http import JSON, Handler, Request, Response, not_found, text
from kubeproxy.status.listen import listen

ADDRESS = "127.0.0.1"
INDEX = "index.html"
MOST_CONNECTIONS = 64
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)


def open_socket(port: int) -> socket.socket:
    """Return the socket to serve on. Raises ListenError."""
    return listen("tcp4", ADDRESS, port)


async def serve(sock: socket.socket, handler: Handler, until: asyncio.Event) -> None:
    """Serve until the event."""
    listener = Listener(sock, handler, Connections(MOST_CONNECTIONS))
    listener.start()
    try:
        await until.wait()
    finally:
        listener.close()


def page_files() -> Mapping[str, Response]:
    """Return the files of the page, by name."""
    folder = files("kpctl.dashboard") / "page"
    return {
        entry.name: Response(
            entry.read_bytes(), 200, (("Content-Type", TYPES[entry.name.rpartition(".")[2]]),)
        )
        for entry in folder.iterdir()
    }


def dashboard_handler(feed: Feed, token: str, port: int) -> Handler:
    """Return the handler of the dashboard at one port."""
    hosts = {f"{ADDRESS}:{port}", f"localhost:{port}"}
    pages = page_files()
    answers: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "data/changes": lambda request: _changes(feed, request),
        "data/service": lambda request: _service(feed, request),
        "data/endpoints": lambda request: _endpoints(feed, request),
    }

    async def handle(request: Request) -> Response:
        refusal = _refusal(request, hosts, token)
        if refusal is not None:
            return _guarded(refusal)
        path = request.path.removeprefix(f"/{token}/")
        if path in answers:
            return _guarded(await answers[path](request))
        return _guarded(pages.get(path or INDEX) or not_found())

    return handle


def _refusal(request: Request, hosts: set[str], token: str) -> Response | None:
    """Return why a request is not answered, or None."""
    headers = request.headers
    if request.method != "GET":
        return text("the dashboard only answers GET\n", 405)
    if headers.get("host", "").lower() not in hosts:
        return text("this server answers for 127.0.0.1 and localhost only\n", 403)
    origin = headers.get("origin", "").lower().removeprefix("http://")
    is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    if is_foreign or (origin and origin not in hosts):
        return text("requests of other sites are refused\n", 403)
    given = request.path[1:].partition("/")
    if not hmac.compare_digest(given[0].encode(), token.encode()) or not given[1]:
        return text("open the whole address that `kpctl dashboard` printed\n", 403)
    return None


def _guarded(response: Response) -> Response:
    own = tuple(header for header in response.headers if header[0] != "X-Content-Type-Options")
    return replace(response, headers=(*own, *HEADERS))


def _argument(request: Request, name: str) -> str:
    return next(iter(request.query.get(name, ())), "")


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), 200, (JSON,))


async def _changes(feed: Feed, request: Request) -> Response:
    since = _argument(request, "since")
    await feed.refresh()
    number = int(since) if since.isdecimal() and len(since) < 16 else 0
    return _json(feed.board.answer(number, _argument(request, "history")))


async def _service(feed: Feed, request: Request) -> Response:
    name = ServiceName(_argument(request, "namespace"), _argument(request, "name"))
    await feed.refresh_service(name)
    return _json(feed.board.service(name))


async def _endpoints(feed: Feed, request: Request) -> Response:
    return _json(feed.board.with_endpoint(_argument(request, "address")))
