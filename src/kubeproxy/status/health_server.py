"""The health server (port 10256): `/healthz` for load balancers, `/livez` for the kubelet.

What healthy means is decided in `health`. Every response is counted.
"""

from __future__ import annotations

from posixpath import normpath

from kubeproxy.status.health import ProxyHealth
from kubeproxy.status.http import (
    JSON,
    NOSNIFF,
    Handler,
    Request,
    Response,
    ServerRole,
    not_found,
    redirect,
)
from kubeproxy.status.metrics import Metrics

HEALTHZ_ROLE = ServerRole(
    log_message="Healthz server failed",
    listen_prefix="failed to start proxy healthz on {address}: ",
    fatal_prefix="healthz server failed: ",
    event_reason="FailedToStartProxierHealthcheck",
)


def health_handler(health: ProxyHealth, metrics: Metrics) -> Handler:
    """Return the handler of the health server. It accepts any method."""
    paths = {"/healthz": health.healthz, "/livez": health.livez}

    def handle(request: Request) -> Response:
        respond = paths.get(request.path)
        if respond is None:
            return _elsewhere(request)
        response = respond()
        metrics.health_answered(request.path, response.code)
        return Response(response.body, response.code, (JSON, NOSNIFF))

    return handle


def _elsewhere(request: Request) -> Response:
    """Respond to other paths like Go's multiplexer, which sends clients to the shortest form."""
    if request.path == "*":
        return Response(b"", 400)
    clean = _shortest(request.path)
    is_final = clean == request.path or request.method == "CONNECT"
    return not_found() if is_final else redirect(clean)


def _shortest(path: str) -> str:
    clean = normpath("/" + path.lstrip("/"))
    return f"{clean}/" if path.endswith("/") and clean != "/" else clean
