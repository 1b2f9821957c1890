"""The metrics server (port 10249): metrics, configuration, flags, status and debug pages.

Everything shown is given as an argument. The server decides nothing and changes nothing, except the
log verbosity when profiling is enabled and a client sets it.
"""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from kubeproxy.status.accept import accepts_gzip
from kubeproxy.status.http import (
    JSON,
    NOSNIFF,
    TEXT,
    Handler,
    Request,
    Response,
    ServerRole,
    not_found,
    text,
)
from kubeproxy.status.metrics import Metrics
from kubeproxy.status.zpages import SEPARATORS, RunningVersion, flagz, statusz

if TYPE_CHECKING:
    from kubeproxy.status.debug_pages import DebugPages

METRICS_ROLE = ServerRole(
    log_message="starting metrics server failed",
    listen_prefix="",
    fatal_prefix="",
    event_reason="FailedToStartMetricServer",
)

_CONFIG_NAME = "kubeproxy.config.k8s.io"
_CHECK = "ping"


class Pages(msgspec.Struct, frozen=True):
    """Everything the server shows. A page that is None does not exist.

    `config` is the configuration as v1alpha1 JSON, with kind and apiVersion.
    """

    metrics: Metrics
    config: bytes
    flags: Mapping[str, str] | None = None
    version: RunningVersion | None = None
    debug: DebugPages | None = None
    is_waiting: Callable[[], bool] = lambda: False
    """Does another proxy serve this network namespace?"""


def metrics_handler(
    pages: Pages,
    *,
    now_ns: Callable[[], int] = time.time_ns,
    choose: Callable[[tuple[str, ...]], str] = random.choice,
) -> Handler:
    """Return the handler of the metrics server. `choose` picks separators of text pages."""
    server = _MetricsServer(pages, now_ns, choose)
    return server.handle


class _MetricsServer:
    def __init__(
        self,
        pages: Pages,
        now_ns: Callable[[], int],
        choose: Callable[[tuple[str, ...]], str],
    ) -> None:
        self._pages = pages
        self._metrics = pages.metrics
        self._now_ns = now_ns
        self._choose = choose
        self._flag_separator = choose(SEPARATORS)
        started = int(self._metrics.process.start_time_seconds())
        self._started = ("Process-Start-Time-Unix", str(started))
        self._routes = self._build_routes()

    def _build_routes(self) -> dict[str, Callable[[Request], Response]]:
        routes: dict[str, Callable[[Request], Response]] = {
            "/healthz": self._healthz,
            "/healthz/ping": lambda _: Response(b"ok", 200, (TEXT,)),
            "/metrics": self._scrape,
            "/metrics/slis": self._slis,
            "/proxyMode": self._proxy_mode,
            "/configz": self._configz,
        }
        if self._pages.flags is not None:
            routes["/flagz"] = self._flagz
        if self._pages.version is not None:
            routes["/statusz"] = self._statusz
        return routes

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        route = self._routes.get(request.path)
        if route is not None:
            return route(request)
        if self._pages.debug is not None and request.path.startswith("/debug/"):
            return self._pages.debug.handle(request)
        return not_found()

    def _healthz(self, request: Request) -> Response:
        """Show that this server responds. The proxy's health is on the health server."""
        unknown = {name for value in request.query.get("exclude", ()) for name in value.split(",")}
        unknown.discard("")
        is_excluded = _CHECK in unknown
        unknown.discard(_CHECK)
        if not is_excluded:
            self._metrics.slis.observe(_CHECK, "healthz", passed=True)
        if "verbose" not in request.query:
            return text("ok")
        lines = [f"[+]{_CHECK} {'excluded: ' if is_excluded else ''}ok"]
        if unknown:
            names = ", ".join(f'"{name}"' for name in sorted(unknown))
            lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
        return text("\n".join([*lines, "healthz check passed", ""]))

    def _scrape(self, request: Request) -> Response:
        return _compressed(request, *self._metrics.scrape(request.accept), self._started)

    def _slis(self, request: Request) -> Response:
        if request.method == "DELETE":
            self._metrics.slis.reset()
            return text("metrics reset\n")
        return _compressed(request, *self._metrics.slis.scrape(request.accept), self._started)

    def _configz(self, _: Request) -> Response:
        body = msgspec.json.encode({_CONFIG_NAME: msgspec.Raw(self._pages.config)})
        return Response(body, 200, (JSON, NOSNIFF))

    def _flagz(self, request: Request) -> Response:
        flags = self._pages.flags or {}
        return flagz(flags, request.accept, separator=self._flag_separator)

    def _proxy_mode(self, _: Request) -> Response:
        """Who asks takes the answer for a proxy that programs the kernel."""
        if self._pages.is_waiting():
            return text("waiting for the end of another kube-proxy\n", 503)
        return text(self._metrics.mode)

    def _statusz(self, request: Request) -> Response:
        assert self._pages.version is not None
        paths = ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"]
        return statusz(
            self._pages.version,
            [path for path in paths if path in self._routes],
            request.accept,
            now_ns=self._now_ns(),
            separator=self._choose(SEPARATORS),
        )


def _compressed(
    request: Request, content_type: str, body: bytes, *more: tuple[str, str]
) -> Response:
    headers = (("Content-Type", content_type), *more)
    if not accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(body, 200, headers)
    # Level 1: a scrape is read once, on a fast network, so time counts more than size.
    packed = gzip.compress(body, compresslevel=1, mtime=0)
    return Response(packed, 200, (*headers, ("Content-Encoding", "gzip")))
