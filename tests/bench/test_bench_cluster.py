"""The benchmark's objects, and how they get into an API server."""

import gc
import ipaddress
from pathlib import Path

import msgspec
import pytest

from kpctl.bench.cluster import (
    CLUSTER_CIDR,
    ENDPOINT_CIDR,
    SERVICE_CIDR,
    SPARE,
    cluster_ip,
    in_parallel,
    pod_ip,
    service_json,
    slice_json,
)
from kpctl.bench.feed import Feed
from kpctl.bench.records import Size
from kpctl.bench.workload import churn
from kpctl.bench.world import Site
from kubeproxy.api import objects


def test_objects_are_what_the_api_calls_by_these_names() -> None:
    """They decode as a Service and a slice of it, with everything ready."""
    service = msgspec.convert(service_json(3), objects.Service)
    endpoint_slice = msgspec.convert(slice_json(3, range(10)), objects.EndpointSlice)
    assert service.metadata.name == "svc-00003"
    assert len(endpoint_slice.endpoints or ()) == 10


def test_addresses_of_the_largest_cluster_are_distinct_and_inside_their_networks() -> None:
    """30,000 services with 50 endpoints, spare ones included."""
    last = 30000
    endpoints = ipaddress.IPv4Network(ENDPOINT_CIDR)
    assert ipaddress.ip_address(pod_ip(last, SPARE + 63)) in endpoints
    assert endpoints.subnet_of(ipaddress.IPv4Network(CLUSTER_CIDR))
    assert ipaddress.ip_address(cluster_ip(last)) in ipaddress.IPv4Network(SERVICE_CIDR)
    assert pod_ip(1, 0) != pod_ip(0, SPARE + 63)


async def test_an_interrupted_measure_is_cleared_up(tmp_path: Path) -> None:
    """Whatever it had got to: a changed slice, a Service that was added, or nothing."""
    feed = Feed(tmp_path)
    await feed.load(Size(3, 2))
    await feed.cluster.set_slots(1, (SPARE, 1))
    await feed.cluster.add_service(3)
    await feed.cluster.restore()
    await feed.cluster.restore()
    assert feed.cluster.slots[1] == (0, 1)
    await feed.cluster.add_service(3)


@pytest.mark.kernel
async def test_a_node_is_served_without_a_pause_for_garbage(tmp_path: Path) -> None:
    """The pause of the API server, up to a second, would count as the latency of a proxy."""
    feed, site, collected = Feed(tmp_path), Site(), list[str]()

    def collecting(phase: str, info: dict[str, int]) -> None:
        collected.append(f"{phase} {info}")

    before = gc.get_threshold()
    await feed.load(Size(3, 2))
    try:
        async with feed.reached_from(site):
            gc.set_threshold(10, 1, 1)
            gc.callbacks.append(collecting)
            await churn(feed.cluster, rate=1000, seconds=0.05)
            during = list(collected)
        await feed.cluster.restore()
    finally:
        gc.callbacks.remove(collecting)
        gc.set_threshold(*before)
        site.close()
    assert during == []
    assert collected, "nothing was created that would have been collected"


async def test_jobs_are_all_done_and_progress_is_reported() -> None:
    """Each once, and the last word is that all are done."""
    done: list[int] = []
    reported: list[tuple[int, int]] = []

    async def job(number: int) -> None:
        done.append(number)

    jobs = [lambda n=n: job(n) for n in range(250)]
    await in_parallel(jobs, lambda now, total: reported.append((now, total)))
    assert sorted(done) == list(range(250))
    assert reported[-1] == (250, 250)


async def test_a_failed_job_is_not_swallowed() -> None:
    """The caller gets the error."""

    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ExceptionGroup):
        await in_parallel([fails])
