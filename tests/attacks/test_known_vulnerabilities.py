"""Vulnerabilities of upstream that no other test answers; docs/security.md lists all."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.builders import endpoint, node
from tests.support.loopback import ask, serving

from kubeproxy.api import objects
from kubeproxy.api.decode import decode_service
from kubeproxy.facts.endpoint import PortKey
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.plan.service import plan_service
from kubeproxy.plan.types import FrontendKind
from kubeproxy.status.health import ProxyHealth
from kubeproxy.status.health_server import health_handler
from kubeproxy.status.metrics import Metrics

INGRESS: list[dict[str, object]] = [{}, {"hostname": "lb.example"}, {"ip": ""}, {"ip": "0.0.0.0"}]


@pytest.mark.parametrize("ingress", INGRESS)
def test_a_load_balancer_without_an_address_takes_no_traffic(ingress: dict[str, object]) -> None:
    """CVE-2021-25736: on Windows such a Service took traffic for its port to any local address."""
    document = {
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": [ingress]}},
    }
    facts = decode_service(msgspec.convert(document, objects.Service), Family.IPV4).facts
    assert facts is not None
    targets = {PortKey("", Protocol.TCP): (endpoint("10.244.1.5"),)}
    (plan,) = plan_service(facts, targets, node())
    assert [frontend.kind for frontend in plan.frontends] == [FrontendKind.CLUSTER_IP]


@pytest.mark.parametrize(
    "path", ["/debug/pprof", "/debug/pprof/", "/metrics", "/configz", "/flagz"]
)
async def test_the_health_port_serves_health_alone(path: str) -> None:
    """CVE-2019-11248: profiles were served where only probes were meant to ask."""
    health = ProxyHealth(60, monotonic=lambda: 0.0, wall_ns=lambda: 0)
    async with serving(health_handler(health, Metrics("nftables"))) as port:
        assert (await ask(port, path)).status == 404


async def test_methods_of_clients_make_no_series() -> None:
    """CVE-2022-21698: a label had the method of any request, so that clients could fill memory."""
    metrics = Metrics("nftables")
    health = ProxyHealth(60, monotonic=lambda: 0.0, wall_ns=lambda: 0)
    async with serving(health_handler(health, metrics)) as port:
        await ask(port, "/healthz", "GET")
        before = metrics.scrape()[1].count(b"\n")
        for number in range(50):
            await ask(port, f"/healthz?{number}", f"METHOD{number}", User_Agent=f"agent-{number}")
            await ask(port, f"/path-{number}", "GET")
        shown = metrics.scrape()[1]
    assert shown.count(b"\n") == before
    assert b"METHOD" not in shown and b"agent-" not in shown and b"path-" not in shown
