"""`kpctl top` and --service-metrics beside a running daemon, with real connections."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from tests.support.flowing import (
    ADDRESSES,
    connect,
    listening,
    prepare,
    refused,
    repeating,
    serve,
)
from tests.support.host import Host

pytestmark = pytest.mark.kernel

NEW, REJECTED = "connectionsPerSecond", "rejectedPerSecond"


def start(host: Host, mode: str, *flags: str) -> str:
    prepare(host)
    vip, first, second = ADDRESSES["IPv4"]
    serve(host, "IPv4", {first: True, second: True})
    host.start(f"--proxy-mode={mode}", *flags)
    host.until(host.socket.exists, "the socket")
    return vip


def refuses(host: Host, mode: str) -> bool:
    """Does a rule refuse what has no endpoints?"""
    if mode == "nftables":
        return "goto reject-chain" in host.tables()
    return "has no endpoints" in host.run("iptables-save", "-t", "filter").stdout


def sample(host: Host, figure: str, *arguments: str) -> dict[str, Any]:
    """The first sample in which a Service has this figure: a busy machine may miss some seconds."""
    found: dict[str, Any] = {}

    def is_shown() -> bool:
        nonlocal found
        found = one_sample(host, *arguments)
        return any(row[figure] for row in found["services"])

    host.until(is_shown, f"{figure} above 0")
    return found


def one_sample(host: Host, *arguments: str) -> dict[str, Any]:
    done = host.run("kpctl", "top", "--socket", host.socket, "-o", "json", "-i", "2", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("mode", ["nftables", "iptables", "userspace"])
def test_new_connections_are_shown_with_the_share_of_each_endpoint(host: Host, mode: str) -> None:
    vip = start(host, mode)
    with listening(host, "IPv4"):
        connect(host, vip).close()
        with repeating(lambda: connect(host, vip).close()):
            found = sample(host, NEW)
    (row,) = found["services"]
    assert row["service"] == "shop/web:http"
    assert row["connectionsPerSecond"] > 0
    assert {e["endpoint"] for e in row["endpoints"]} <= {"10.244.1.5:8080", "10.244.1.6:8080"}
    assert sum(e["share"] for e in row["endpoints"]) == pytest.approx(1, abs=0.01)
    has_note = any("only if kube-proxy has --service-metrics" in note for note in found["notes"])
    assert has_note == (mode == "nftables")


@pytest.mark.parametrize("mode", ["nftables", "iptables", "userspace"])
def test_refused_packets_are_shown_with_the_reason(host: Host, mode: str) -> None:
    vip = start(host, mode, *(["--service-metrics=5"] if mode == "nftables" else []))
    with listening(host, "IPv4"):
        connect(host, vip).close()
    serve(host, "IPv4", {})
    host.until(lambda: refuses(host, mode), "the rule")
    with repeating(lambda: refused(host, vip)):
        found = sample(host, REJECTED, "shop/web")
    (row,) = found["services"]
    assert row["rejectedPerSecond"] > 0
    assert row["reason"] == "has no endpoints"
    assert row["connectionsPerSecond"] == 0


def test_one_sample_is_readable_in_a_pipe(host: Host) -> None:
    vip = start(host, "nftables")
    with listening(host, "IPv4"), repeating(lambda: connect(host, vip).close()):
        shown = partial(host.run, "kpctl", "top", "--socket", host.socket, "-i", "2")
        done = shown()
        while "shop/web" not in done.stdout:  # a busy machine may miss some seconds
            done = shown()
    head, rounds, _, headings, *rows = done.stdout.splitlines()
    assert head.startswith("nftables mode, ") and head.endswith(": kube-proxy on node worker-a")
    assert rounds.startswith("rounds: ")
    assert headings.split()[:5] == ["service", "port", "new/s", "reject/s", "drop/s"]
    assert rows[0].startswith("shop/web:http/TCP")


def test_a_kernel_without_events_is_listed(host: Host) -> None:
    vip = start(host, "nftables")
    assert not host.run("sysctl", "-qw", "net.netfilter.nf_conntrack_events=0").returncode
    with listening(host, "IPv4"):
        connect(host, vip).close()
        with repeating(lambda: connect(host, vip).close()):
            found = sample(host, NEW)
    assert found["services"][0]["connectionsPerSecond"] > 0
    assert any("nf_conntrack_events=0" in note for note in found["notes"])


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_the_daemon_counts_connections_per_service_if_asked(host: Host, mode: str) -> None:
    vip = start(host, mode, "--service-metrics=5")
    assert not host.run("sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1").returncode
    series = 'kubeproxy_service_connections_total{name="web",namespace="shop"}'

    def count() -> float:
        found = [line for line in host.get(10249, "/metrics")[1].splitlines() if series in line]
        return float(found[0].split()[-1]) if found else 0

    with listening(host, "IPv4"):
        connect(host, vip).close()
        host.until(count, "the first connection is counted")
        before = count()
        for _ in range(10):
            connect(host, vip).close()
        host.until(lambda: count() >= before + 10, "ten more are counted")
    # Deleting the entries ends them, and then their bytes are known.
    host.run("conntrack", "-D", "-d", vip)
    bytes_sent = 'kubeproxy_service_bytes_total{direction="sent",name="web",namespace="shop"}'
    host.until(lambda: bytes_sent in host.get(10249, "/metrics")[1], "bytes are counted")
    serve(host, "IPv4", {})
    host.until(lambda: refuses(host, mode), "the rule")
    rejects = (
        'kubeproxy_service_refused_packets_total{action="reject",name="web",namespace="shop"'
        ',reason="has no endpoints"}'
    )

    def is_counted() -> bool:
        # Again and again: the rule may be written once more, which begins at 0, before it is read.
        refused(host, vip)
        return rejects in host.get(10249, "/metrics")[1]

    host.until(is_counted, "a refused packet is counted")
