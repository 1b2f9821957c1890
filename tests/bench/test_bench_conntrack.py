"""The benchmark of a large connection tracking table."""

from __future__ import annotations

import os

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kpctl.bench.cluster import POD_PORT, SERVICE_PORT, cluster_ip, pod_ip
from kpctl.bench.conntrack import FlowEffort, made_flows, measure_flows, stale_of, why_not
from kpctl.bench.records import OURS, Measurement, Size
from kubeproxy.errors import Unsupported
from kubeproxy.plan.conntrack import pack_socket

SIZE = Size(110, 2)


def test_a_fifth_of_the_flows_goes_to_services_and_to_each_endpoint_alike() -> None:
    flows = list(made_flows(5 * 220 * 3, SIZE))
    assert len({flow.client for flow in flows}) == len(flows)
    vip, pod = pack_socket(cluster_ip(7), SERVICE_PORT), pack_socket(pod_ip(7, 0), POD_PORT)
    assert sum(flow.destination == vip for flow in flows) == 6
    assert sum(flow.reply_source == pod for flow in flows) == 3
    assert sum(flow.destination == flow.reply_source for flow in flows) == len(flows) * 4 // 5


@pytest.mark.parametrize("count", [0, 1, 499, 5 * 220, 12345])
def test_stale_flows_are_counted_as_they_are_made(count: int) -> None:
    services = range(3, 40)
    old = {pack_socket(pod_ip(index, 0), POD_PORT) for index in services}
    made = sum(flow.reply_source in old for flow in made_flows(count, SIZE))
    assert stale_of(count, SIZE, services) == made


def test_a_table_that_the_host_does_not_allow_is_refused_with_the_remedy() -> None:
    assert why_not(1) == ""
    with pytest.raises(Unsupported, match=r"sysctl -w net\.netfilter\.nf_conntrack_max=1000001000"):
        measure_flows(FlowEffort(10**9), started=print, found=print, is_over=lambda _: False)


@pytest.mark.kernel
def test_ours_is_measured() -> None:
    """As small as can be: stale flows go, also those of a restart, and other changes are timed."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    found: list[Measurement] = []
    effort = FlowEffort(
        flows=5 * 220, rounds=1, cutoff_seconds=LIMIT_SECONDS, size=SIZE, programs=(OURS,),
        idle_seconds=0,
    )  # fmt: skip
    measure_flows(effort, started=lambda _: None, found=found.extend, is_over=lambda _: False)
    assert not [each for each in found if each.is_limit]
    names = {each.name for each in found}
    for what in ("one endpoint replaced", "an endpoint of 100 Services replaced", "restart"):
        for measure in ("stale flows gone", "endpoint added meanwhile", "CPU"):
            assert f"1,100 flows, {what}: {measure}" in names
