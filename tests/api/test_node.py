"""Looking for our own Node, carrying events, counting requests."""

from __future__ import annotations

import pytest
from tests.support.reflecting import client_of

from kpctl.apiserver.small import Fault, SmallApiServer
from kpctl.apiserver.store import Json
from kubeproxy.api.api_server import ApiEventPoster
from kubeproxy.api.auth.access import Access
from kubeproxy.api.client import ClientSettings, connect
from kubeproxy.api.events import EventRequest
from kubeproxy.api.node import NextStep, NodeDecision, NodeFinder, NodeWait
from kubeproxy.api.objects import Node, NodeAddress, NodeMeta, NodeSpec, NodeStatus
from kubeproxy.api.transport import Request
from kubeproxy.errors import ApiError, Unavailable
from kubeproxy.status.api_client import MetricObserver
from kubeproxy.status.metrics import Metrics

PROCEED, RETRY = NodeDecision(NextStep.PROCEED), NodeDecision(NextStep.RETRY)


def node(*ips: str, pod_cidrs: tuple[str, ...] = ()) -> Node:
    addresses = [NodeAddress("InternalIP", ip) for ip in ips]
    return Node(NodeMeta(name="n1"), NodeSpec(list(pod_cidrs)), NodeStatus(addresses))


def test_a_node_with_an_address_is_enough() -> None:
    assert NodeWait("n1", needs_pod_cidrs=False).decide(node("10.0.0.1"), 0.0) == (PROCEED,)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "Timed out waiting for node to exist"),
        (node(), "Timed out waiting for node to be assigned IPs"),
    ],
)
def test_after_thirty_seconds_it_goes_on_without(found: Node | None, message: str) -> None:
    wait = NodeWait("n1", needs_pod_cidrs=False)
    assert wait.decide(found, 100.0) == (RETRY,)
    assert wait.decide(found, 129.9) == (RETRY,)
    assert wait.decide(found, 130.0) == (NodeDecision(NextStep.PROCEED, message),)


def test_pod_networks_get_five_more_minutes_and_then_it_is_over() -> None:
    wait = NodeWait("n1", needs_pod_cidrs=True)
    assert wait.decide(node(), 0.0) == (RETRY,)
    assert wait.decide(node("10.0.0.1"), 20.0) == (PROCEED, RETRY)
    assert wait.decide(node("10.0.0.1"), 319.0) == (RETRY,)
    assert wait.decide(node("10.0.0.1"), 320.0) == (
        NodeDecision(NextStep.GIVE_UP, 'timeout waiting for PodCIDR allocation on node "n1"'),
    )
    assert wait.decide(None, 321.0) == (
        NodeDecision(NextStep.GIVE_UP, 'timeout waiting for node "n1" to exist'),
    )


def test_pod_networks_that_are_there_are_not_waited_for() -> None:
    complete = node("10.0.0.1", pod_cidrs=("10.1.0.0/24",))
    assert NodeWait("n1", needs_pod_cidrs=True).decide(complete, 0.0) == (PROCEED, PROCEED)


class Time:
    """Time passes by sleeping; things may happen meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.plans: dict[float, tuple[SmallApiServer, Json]] = {}

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [moment for moment in self.plans if moment <= self.now]:
            api, item = self.plans.pop(moment)
            await api.create("nodes", "", item)


NODE: Json = {
    "metadata": {"name": "n1"},
    "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
}


async def find(api: SmallApiServer, time: Time, *, needs_pod_cidrs: bool = False) -> Node | None:
    async with client_of(api) as client:
        finder = NodeFinder(client, clock=time.clock, rand=lambda: 0.0, sleep=time.sleep)
        return await finder.find("n1", needs_pod_cidrs=needs_pod_cidrs)


async def test_a_late_node_is_waited_for_second_by_second(api: SmallApiServer) -> None:
    time = Time()
    time.plans[5.0] = (api, NODE)
    found = await find(api, time)
    assert found is not None
    assert found.metadata.name == "n1"
    assert time.now == 5.0
    assert {request.query["fieldSelector"] for request in api.requests} == {"metadata.name=n1"}


async def test_a_node_that_never_comes_is_gone_on_without(api: SmallApiServer) -> None:
    time = Time()
    assert await find(api, time) is None
    assert time.now == 30.0


async def test_a_node_without_pod_networks_is_fatal_where_they_are_needed(
    api: SmallApiServer,
) -> None:
    await api.create("nodes", "", NODE)
    with pytest.raises(ApiError, match='timeout waiting for PodCIDR allocation on node "n1"'):
        await find(api, Time(), needs_pod_cidrs=True)


async def test_an_unreachable_server_is_waited_for_without_limit(api: SmallApiServer) -> None:
    await api.create("nodes", "", NODE)
    api.faults += [Fault(status=500)] * 20 + [Fault(body=b"not json")]
    time = Time()
    assert await find(api, time) is not None
    assert time.now > 300


async def test_events_are_created_and_patched(api: SmallApiServer) -> None:
    body = b'{"metadata":{"name":"n1.abc","namespace":"default"},"reason":"Starting"}'
    async with client_of(api) as client:
        poster = ApiEventPoster(client)
        created = await poster.post_event(EventRequest("POST", "default", "n1.abc", body))
        again = await poster.post_event(EventRequest("POST", "default", "n1.abc", body))
        patch = EventRequest("PATCH", "default", "n1.abc", b'{"series":{"count":2}}')
        patched = await poster.post_event(patch)
    assert (created, again, patched) == (201, 409, 200)
    assert api.store.get("events", "default", "n1.abc")["series"] == {"count": 2}
    types = [request.headers["Content-Type"] for request in api.requests]
    assert types == [
        "application/json",
        "application/json",
        "application/strategic-merge-patch+json",
    ]


async def test_refused_events_give_their_status_and_lost_ones_raise(api: SmallApiServer) -> None:
    request = EventRequest("POST", "default", "x", b'{"metadata":{"name":"x"}}')
    async with client_of(api) as client:
        poster = ApiEventPoster(client)
        api.forbidden = {("create", "events")}
        assert await poster.post_event(request) == 403
        api.faults.append(Fault(status=404))
        assert await poster.post_event(request) == 404
        api.faults.append(Fault(status=500))
        with pytest.raises(Unavailable):
            await poster.post_event(request)


async def test_requests_are_counted_under_upstreams_names(api: SmallApiServer) -> None:
    metrics = Metrics("nftables")
    observer = MetricObserver(metrics)
    api.faults.append(Fault(status=429, headers=(("Retry-After", "0"),)))
    access = Access(server=api.url.replace("127.0.0.1", "localhost"))
    client = connect(access, settings=ClientSettings(qps=-1), observer=observer, environment={})
    for _ in range(2):
        await client.read(Request("GET", "/api/v1/nodes"))
    await client.close()
    observer.plugin_called(code=1, status="plugin_execution_error")
    text = metrics.scrape()[1].decode()
    host = f'host="{access.host}"'
    assert f'rest_client_requests_total{{code="200",{host},method="GET"}} 2\n' in text
    assert f'rest_client_request_retries_total{{code="429",{host},verb="GET"}} 1\n' in text
    for name in ("request_duration_seconds", "rate_limiter_duration_seconds", "request_size_bytes"):
        assert f'rest_client_{name}_count{{{host},verb="GET"}} 3\n' in text
    assert f'rest_client_response_size_bytes_count{{{host},verb="GET"}} 2\n' in text
    assert 'rest_client_dns_resolution_duration_seconds_count{host="localhost"}' in text
    assert "rest_client_exec_plugin_ttl_seconds +Inf\n" in text
    assert "rest_client_transport_cache_entries 1\n" in text
    assert 'rest_client_transport_create_calls_total{result="miss"} 1\n' in text
    assert 'call_status="plugin_execution_error",code="1"' in text
