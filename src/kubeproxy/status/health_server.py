"""The health server (port 10256): `/healthz` for load balancers, `/livez` for the kubelet.

What healthy means is decided in `health`. Every response is counted.
"""

from __future__ import annotations

from kubeproxy.status.health import ProxyHealth
from kubeproxy.status.http import JSON, NOSNIFF, Handler, Request, Response, ServerRole, not_found
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

    async def handle(request: Request) -> Response:
        respond = paths.get(request.path)
        if respond is None:
            return not_found()
        response = respond()
        metrics.health_answered(request.path, response.code)
        return Response(response.body, response.code, (JSON, NOSNIFF))

    return handle
