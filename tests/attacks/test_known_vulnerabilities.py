"""Vulnerabilities of upstream that no other test answers; docs/security.md lists all."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.support.builders import endpoint, node
from tests.support.loopback import ask, serving
from tests.support.recorded import RecordedRequests

from kpctl.apiserver.small import Fault, SmallApiServer
from kubeproxy.api import objects
from kubeproxy.api.auth.access import Access
from kubeproxy.api.client import Client, ClientSettings, connect
from kubeproxy.api.decode import decode_service
from kubeproxy.api.transport import Request
from kubeproxy.errors import ProxyError
from kubeproxy.facts.endpoint import PortKey
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.logs import get_logger
from kubeproxy.logs.logger import LogOptions, setup_logging, stop_logging
from kubeproxy.plan.service import plan_service
from kubeproxy.plan.types import FrontendKind
from kubeproxy.status.health import ProxyHealth
from kubeproxy.status.health_server import health_handler
from kubeproxy.status.metrics import Metrics

logger = get_logger(__name__)

SECRET = "eyJhbGciOi.secret-token"
SERVICES = Request("GET", "/api/v1/services")
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


@asynccontextmanager
async def client_of(api: SmallApiServer) -> AsyncIterator[Client]:
    access = Access(server=api.url, token=SECRET)
    client = connect(
        access, observer=RecordedRequests(), settings=ClientSettings(qps=-1), environment={}
    )
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_credentials_do_not_follow_a_redirection(status: int) -> None:
    """CVE-2022-3172, CVE-2020-8559: an API server, or what is taken for one, names another."""
    async with SmallApiServer().serving() as api, SmallApiServer().serving() as other:
        where = (("Location", f"{other.url}/api/v1/services"),)
        api.faults.append(Fault(status=status, headers=where))
        async with client_of(api) as client:
            with pytest.raises(ProxyError):
                await client.read(SERVICES)
        assert (len(api.requests), other.requests) == (1, [])


async def test_no_verbosity_writes_credentials_to_the_log() -> None:
    """CVE-2019-11250, CVE-2020-8565: tokens of requests were logged at a high verbosity."""
    log = io.StringIO()
    setup_logging(LogOptions(verbosity=10), stderr=log)
    try:
        async with SmallApiServer().serving() as api, client_of(api) as client:
            await client.read(SERVICES)
            for fault in (Fault(status=500), Fault(body=b"{", breaks=True), Fault(status=403)):
                api.faults.append(fault)
                with pytest.raises(ProxyError) as caught:
                    await client.read(SERVICES)
                logger.error(caught.value, "Failed")
            api.tokens = {}
            with pytest.raises(ProxyError) as caught:
                await client.read(SERVICES)
            logger.error(caught.value, "Failed")
            assert any(SECRET in str(each) for each in api.requests), "it was sent"
    finally:
        stop_logging()
    assert "Failed" in log.getvalue()
    assert SECRET not in log.getvalue()
