"""Proxies of a lab: the objects they are given, and what they report."""

from __future__ import annotations

import asyncio
import signal
import time

import msgspec
import pytest

from kpctl.flows.objects import generation_manifest, node_manifest
from kpctl.lab.cluster import Lab
from kpctl.lab.proxy import ProxyFailed, logged_syncs, parse_last_syncs
from kpctl.lab.topology import Topology
from kubeproxy.facts.ids import Family
from kubeproxy.modes.registry import mode_names


def test_the_health_answer_says_when_each_family_synced() -> None:
    answer = (
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
        '{"lastUpdated":"2026-01-01T00:00:00Z","status":'
        '{"IPv4":{"lastUpdated":"1970-01-01T00:00:01.5Z","healthy":true},'
        '"IPv6":{"lastUpdated":"1970-01-01T00:00:02.123456789Z","healthy":true}}}'
    )
    assert parse_last_syncs(answer) == {Family.IPV4: 1.5, Family.IPV6: pytest.approx(2.123456)}


@pytest.mark.parametrize("answer", ["", "HTTP/1.1 200 OK\r\n\r\nok", "garbage"])
def test_an_answer_that_is_none_says_nothing(answer: str) -> None:
    assert parse_last_syncs(answer) == {}


def test_the_log_of_upstreams_proxy_says_which_families_have_synced() -> None:
    """Its ipvs mode has another spelling than the others."""
    nftables = 'proxier.go:1088] "SyncProxyRules complete" ipFamily="IPv4" elapsed="1s"'
    ipvs = 'proxier.go:694] "syncProxyRules complete" ipFamily="IPv6" elapsed="1s"'
    waiting = 'proxier.go:680] "Not syncing ipvs rules until Services have been received"'
    assert logged_syncs(f"{waiting}\n{nftables}\n") == {Family.IPV4}
    assert logged_syncs(f"{nftables}\n{ipvs}\n") == set(Family)
    assert logged_syncs(waiting) == set()


@pytest.mark.kernel
@pytest.mark.skipif("nftables" not in mode_names(), reason="the nftables mode is not there")
async def test_proxies_start_settle_and_stop(topology: Topology) -> None:
    async with Lab(topology) as lab:
        proxies = lab.proxies
        proxies.write("cluster", [node_manifest(node) for node in topology.nodes])
        await proxies.start("nftables", {})
        began = time.time()
        proxies.write("change", [generation_manifest(1)])
        await proxies.settle(since=began)
        synced = await proxies.last_sync("node-a")
        assert all(synced[family] >= began for family in Family)
        proxies.write("change", [])
        assert not (proxies.manifests / "change.json").exists()
        await proxies.stop(signal.SIGTERM)
        assert not proxies.is_running


@pytest.mark.kernel
async def test_a_proxy_that_cannot_start_is_quoted(topology: Topology) -> None:
    """The error holds the last lines of the log, where the reason is."""
    async with Lab(topology) as lab:
        with pytest.raises(ProxyFailed, match=r"(?s)node-a is not running.*no-such-flag"):
            await lab.proxies.start("nftables", {"no-such-flag": "1"})


@pytest.mark.kernel
async def test_manifests_are_replaced_in_one_move(topology: Topology) -> None:
    """A reader never sees half a file: every state of it can be decoded."""
    async with Lab(topology) as lab:
        path = lab.proxies.manifests / "x.json"
        for number in range(50):
            lab.proxies.write("x", [generation_manifest(n) for n in range(number % 7 + 1)])
            assert len(msgspec.json.decode(path.read_bytes())["items"]) == number % 7 + 1
        await asyncio.sleep(0)
