"""The health server (port 10256): `/healthz` for load balancers, `/livez` for the kubelet."""

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
    """Answers probes, any method; each answer is counted by status."""
    answers = {"/healthz": health.healthz, "/livez": health.livez}

    async def handle(request: Request) -> Response:
        evaluate = answers.get(request.path)
        if evaluate is None:
            return not_found()
        answer = evaluate()
        metrics.health_answered(request.path, answer.code)
        return Response(answer.body, answer.code, (JSON, NOSNIFF))

    return handle
