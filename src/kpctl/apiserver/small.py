"""A small API server inside this process, for responses that a real one does not give on demand.

It lists, watches, pages, streams, sends bookmarks, expires versions and authenticates like the real
one (a test compares the two). With a `Fault` it cuts lines short, stalls, refuses or sends
nonsense. It listens on loopback only.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import gzip
import json
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from kpctl.apiserver.store import (
    GROUPS,
    Json,
    ObjectStore,
    Selector,
    StatusError,
    group_of,
    parse_selector,
    qualified,
)
from kubeproxy.api.watch import INITIAL_EVENTS_END

_KUBECONFIG = """apiVersion: v1
kind: Config
current-context: main
clusters: [{name: main, cluster: {server: "URL"}}]
users: [{name: main, user: {}}]
contexts: [{name: main, context: {cluster: main, user: main}}]
"""

_COMPRESSED_FROM = 128 * 1024
"""Bytes, as in the real server."""


class SeenRequest(msgspec.Struct, frozen=True):
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    peer: object
    """The address and port it came from."""
    at: float = 0.0
    """When it arrived, by the monotonic clock."""

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"


class Fault(msgspec.Struct, frozen=True):
    """A wrong response to the next request that it applies to."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    stalls: bool = False
    """After the body: send nothing more and keep the connection open."""
    breaks: bool = False
    """After the body: abort the connection in the middle of the response."""
    applies: Callable[[SeenRequest], bool] = lambda _: True


class SmallApiServer:
    """The server. `url` is its address while `serving` is open."""

    def __init__(self) -> None:
        self.store = ObjectStore()
        self.requests: list[SeenRequest] = []
        self.faults: deque[Fault] = deque()
        self.tokens: dict[str, str] | None = None
        """Token → user name. None accepts every request."""
        self.forbidden: set[tuple[str, str]] = set()
        """Pairs of verb and collection that are forbidden to all users."""
        self.unprivileged: set[str] = set()
        """Users without any permission."""
        self.has_streaming_lists = True
        self.url = ""
        self._changed = asyncio.Condition()
        self.bookmarks_sent = 0
        """The number of bookmarks that `bookmark` made watches send."""
        self.bytes_sent = 0
        """Of lists and watches, as they go on the wire."""
        self._bookmarks = 0
        self._watches: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(
        self,
        *,
        port: int = 0,
        context: ssl.SSLContext | None = None,
        listener: socket.socket | None = None,
    ) -> AsyncIterator[SmallApiServer]:
        """Listen on loopback, or by this socket, which may belong to another network namespace.

        The objects outlive it, so that a test can simulate an outage.
        """
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site: web.BaseSite = web.TCPSite(runner, "127.0.0.1", port, ssl_context=context)
        if listener is not None:
            site = web.SockSite(runner, listener, ssl_context=context)
        try:
            await site.start()
            self.url = f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            self.end_watches()
            await runner.cleanup()

    def kubeconfig(self) -> str:
        """Return the text of a kubeconfig without credentials."""
        return _KUBECONFIG.replace("URL", self.url)

    async def create(self, collection: str, namespace: str, item: Json) -> Json:
        return await self._change(lambda: self.store.create(collection, namespace, item))

    async def patch(self, collection: str, namespace: str, name: str, patch: Json) -> Json:
        return await self._change(lambda: self.store.patch(collection, namespace, name, patch))

    async def update(self, collection: str, namespace: str, name: str, item: Json) -> Json:
        return await self._change(lambda: self.store.update(collection, namespace, name, item))

    async def delete(self, collection: str, namespace: str, name: str) -> Json:
        return await self._change(lambda: self.store.delete(collection, namespace, name))

    async def bookmark(self) -> None:
        """Send a bookmark to every watch."""
        async with self._changed:
            self._bookmarks += 1
            self._changed.notify_all()

    def end_watches(self) -> None:
        """End every watch, as a server does when its time is up."""
        for watch in self._watches:
            watch.cancel()

    async def _change(self, change: Callable[[], Json]) -> Json:
        async with self._changed:
            result = change()
            self._changed.notify_all()
            return result

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        seen = SeenRequest(
            request.method,
            request.path,
            dict(request.query),
            dict(request.headers),
            transport.get_extra_info("peername") if transport else None,
            time.monotonic(),
        )
        self.requests.append(seen)
        fault = next((fault for fault in self.faults if fault.applies(seen)), None)
        if fault is not None:
            self.faults.remove(fault)
            return await self._fail(request, fault)
        try:
            return await self._respond(request)
        except StatusError as error:
            headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
            return web.json_response(error.status, status=error.code, headers=headers)

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        response = web.StreamResponse(status=fault.status, headers=dict(fault.headers))
        response.content_type = "application/json"
        if not (fault.stalls or fault.breaks):
            response.content_length = len(fault.body)
        await response.prepare(request)
        await response.write(fault.body)
        if fault.stalls:
            await asyncio.Event().wait()
        if fault.breaks and request.transport is not None:
            request.transport.abort()
        return response

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        user = self._authenticate(request)
        collection, namespace, name = split_path(request.path)
        self._authorize(user, _verb(request, name), collection)
        if request.method != "GET":
            return await self._write(request, collection, namespace, name)
        if name:
            return web.json_response(self.store.get(collection, namespace, name))
        is_watch = request.query.get("watch") == "true"
        if not is_watch or request.query.get("sendInitialEvents") == "true":
            self._require_version(request.query.get("resourceVersion", ""))
        return (
            await self._watch(request, collection) if is_watch else self._list(request, collection)
        )

    def _require_version(self, version: str) -> None:
        """Refuse to list at a version that is still to come. A watch waits for it in silence."""
        if version and int(version) > self.store.version:
            message = f"Too large resource version: {version}, current: {self.store.version}"
            raise StatusError(504, "Timeout", message)

    def _authenticate(self, request: web.Request) -> str:
        if self.tokens is None:
            return "system:masters"
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or token not in self.tokens:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        return self.tokens[token]

    def _authorize(self, user: str, verb: str, collection: str) -> None:
        if (verb, collection) in self.forbidden or user in self.unprivileged:
            group = group_of(collection)
            raise StatusError(
                403,
                "Forbidden",
                f'{qualified(collection)} is forbidden: User "{user}" cannot {verb} resource '
                f'"{collection}" in API group "{group}" at the cluster scope',
            )

    async def _write(
        self, request: web.Request, collection: str, namespace: str, name: str
    ) -> web.Response:
        item: Json = await request.json() if request.can_read_body else {}
        store = self.store
        actions: dict[str, tuple[int, Callable[[], Json]]] = {
            "POST": (201, lambda: store.create(collection, namespace, item)),
            "PUT": (200, lambda: store.update(collection, namespace, name, item)),
            "PATCH": (200, lambda: store.patch(collection, namespace, name, item)),
            "DELETE": (200, lambda: store.delete(collection, namespace, name)),
        }
        code, action = actions[request.method]
        return web.json_response(await self._change(action), status=code)

    def _list(self, request: web.Request, collection: str) -> web.Response:
        query = request.query
        version, start = self.store.version, ("", "")
        if token := query.get("continue"):
            version, start = self._read_token(token)
        items = [
            item for item in self.store.list(collection, _selector(request)) if _key(item) > start
        ]
        metadata: Json = {"resourceVersion": str(version)}
        # Version 0 means "any version": the real server then answers from its cache, which is
        # never cut into pages.
        limit = int(query.get("limit", "0")) if query.get("resourceVersion") != "0" else 0
        if limit and len(items) > limit:
            metadata["continue"] = _make_token(version, _key(items[limit - 1]))
            if _selector(request) == Selector():
                metadata["remainingItemCount"] = len(items) - limit
            items = items[:limit]
        _, kind, api_version = GROUPS[collection]
        found = {
            "kind": f"{kind}List",
            "apiVersion": api_version,
            "metadata": metadata,
            "items": items,
        }
        return self._packed(request, json.dumps(found).encode())

    def _packed(self, request: web.Request, body: bytes) -> web.Response:
        """A list as the real server sends it: compressed if it is large and the client can."""
        headers = {}
        if len(body) >= _COMPRESSED_FROM and "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers = gzip.compress(body, 1), {"Content-Encoding": "gzip"}
        self.bytes_sent += len(body)
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _read_token(self, token: str) -> tuple[int, tuple[str, str]]:
        try:
            version, namespace, name = json.loads(base64.b64decode(token))
        except (ValueError, binascii.Error):
            raise StatusError(400, "BadRequest", "continue key is not valid") from None
        if version < self.store.oldest:
            raise StatusError(
                410, "Expired", "The provided continue parameter is too old to display a list"
            )
        return version, (namespace, name)

    async def _watch(self, request: web.Request, collection: str) -> web.StreamResponse:
        sends_all = request.query.get("sendInitialEvents") == "true"
        if sends_all and not self.has_streaming_lists:
            raise StatusError(
                422,
                "Invalid",
                'ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: '
                "sendInitialEvents is forbidden for watch unless the WatchList feature gate is "
                "enabled",
            )
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)

        async def write(line: bytes) -> None:
            self.bytes_sent += len(line)
            await response.write(line)

        task = asyncio.ensure_future(self._stream(request, collection, write))
        self._watches.add(task)
        try:
            seconds = float(request.query.get("timeoutSeconds", "1800"))
            await asyncio.wait_for(task, seconds)
        except (TimeoutError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._watches.discard(task)
        return response

    async def _stream(
        self, request: web.Request, collection: str, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        query, selector = request.query, _selector(request)
        version = int(query.get("resourceVersion") or "0")
        sends_all = query.get("sendInitialEvents") == "true"
        if version == 0 or sends_all:
            version = self.store.version
            for item in self.store.list(collection, selector):
                await write(_line("ADDED", item))
            if query.get("allowWatchBookmarks") == "true":
                await write(_line("BOOKMARK", _bookmark(collection, version, ends=True)))
        bookmarks = self._bookmarks
        while True:
            upto = self.store.version
            try:
                revisions = list(self.store.revisions(collection, version))
            except StatusError as error:
                return await write(_line("ERROR", error.status))
            for revision in revisions:
                if (event := revision.seen_by(selector)) is not None:
                    await write(_line(*event))
            version = upto
            if bookmarks < self._bookmarks:
                bookmarks = self._bookmarks
                await write(_line("BOOKMARK", _bookmark(collection, version)))
                self.bookmarks_sent += 1
            async with self._changed:
                while self.store.version == version and bookmarks == self._bookmarks:
                    await self._changed.wait()


def split_path(path: str) -> tuple[str, str, str]:
    """Return collection, namespace and name of a request's path. Raises `StatusError` 404."""
    for collection, (group, _, _) in GROUPS.items():
        rest = path.removeprefix(f"{group}/").split("/")
        if not path.startswith(f"{group}/"):
            continue
        if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] == collection:
            return collection, rest[1], rest[3] if len(rest) > 3 else ""
        if rest[0] == collection:
            return collection, "", rest[1] if len(rest) > 1 else ""
    raise StatusError(404, "NotFound", "the server could not find the requested resource")


def _verb(request: web.Request, name: str) -> str:
    if request.method == "GET":
        if name:
            return "get"
        return "watch" if request.query.get("watch") == "true" else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]


def _selector(request: web.Request) -> Selector:
    query = request.query
    return parse_selector(query.get("labelSelector", ""), query.get("fieldSelector", ""))


def _key(item: Json) -> tuple[str, str]:
    metadata = item["metadata"]
    assert isinstance(metadata, dict)
    return metadata.get("namespace", ""), metadata["name"]


def _make_token(version: int, last: tuple[str, str]) -> str:
    return base64.b64encode(json.dumps([version, *last]).encode()).decode()


def _line(type_: str, item: Json) -> bytes:
    return json.dumps({"type": type_, "object": item}).encode() + b"\n"


def _bookmark(collection: str, version: int, *, ends: bool = False) -> Json:
    _, kind, api_version = GROUPS[collection]
    metadata: Json = {"resourceVersion": str(version)}
    if ends:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    return {"kind": kind, "apiVersion": api_version, "metadata": metadata}
