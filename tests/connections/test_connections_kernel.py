"""`kpctl connections` beside a running daemon, with real flows."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.flowing import ADDRESSES, connect, listening, prepare, send, serve
from tests.support.host import Host
from tests.support.served import until_programmed, until_synced_after

from kubeproxy.facts.address import join_host_port

pytestmark = pytest.mark.kernel

MODES = ("nftables", "iptables", "userspace")


def connections(host: Host, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    done = host.run("kpctl", "connections", "--socket", host.socket, "-o", "json", *arguments)
    assert done.returncode == code, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def start(host: Host, mode: str, family: str) -> None:
    prepare(host)
    vip, first, _ = ADDRESSES[family]
    serve(host, family, {first: True})
    host.start(f"--proxy-mode={mode}", "--udp-timeout=60s")
    host.until(host.socket.exists, "the socket")
    # An attempt to connect before that would leave a flow that no rule translated.
    until_programmed(host, vip)


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("mode", MODES)
def test_flows_are_shown_by_endpoint_and_those_to_one_that_left_are_stale(
    host: Host, mode: str, family: str
) -> None:
    """Connections to an endpoint that is no longer ready go on, and are shown with the reason."""
    vip, first, second = ADDRESSES[family]
    start(host, mode, family)
    at_first = join_host_port(first, 8080)
    with listening(host, family), ExitStack() as open_sockets:
        open_sockets.enter_context(closing(connect(host, vip)))
        open_sockets.enter_context(closing(connect(host, vip)))
        (tcp,) = [c for c in connections(host, "shop/web") if c["protocol"] == "TCP"]
        assert tcp["service"] == "shop/web:http"
        assert tcp["ipFamily"] == family
        (endpoint,) = tcp["endpoints"]
        assert endpoint["endpoint"] == at_first
        assert endpoint["connections"] == 2
        assert endpoint["stale"] is None
        assert connections(host, "--stale") == []

        before = datetime.now(UTC)
        serve(host, family, {first: False, second: True})

        def are_stale() -> bool:
            done = host.run("kpctl", "connections", "--socket", host.socket, "--stale")
            return done.returncode == 6

        host.until(are_stale, "the flows become stale")
        (stale,) = connections(host, "--stale", "--limit=10", code=6)
        (endpoint,) = stale["endpoints"]
        assert endpoint["endpoint"] == at_first
        assert endpoint["stale"] == "not ready"
        assert len(endpoint["flows"]) == 2
        until_synced_after(host, before, family)
        open_sockets.enter_context(closing(connect(host, vip)))
        (tcp,) = [c for c in connections(host, join_host_port(vip, 80)) if c["protocol"] == "TCP"]
        assert [e["connections"] for e in tcp["endpoints"]] == [2, 1]


def test_udp_flows_and_bytes_are_shown(host: Host) -> None:
    """Bytes are there where the kernel counts them."""
    vip = ADDRESSES["IPv4"][0]
    start(host, "nftables", "IPv4")
    # A flow without a reply is forgotten after half a minute, in which a command may not be over.
    for setting in ("nf_conntrack_acct=1", "nf_conntrack_udp_timeout=600"):
        assert not host.run("sysctl", "-qw", f"net.netfilter.{setting}").returncode
    with listening(host, "IPv4"), closing(connect(host, vip)), closing(send(host, vip)):
        udp, tcp = sorted(connections(host), key=lambda c: c["protocol"] == "TCP")
        (endpoint,) = udp["endpoints"]
        assert endpoint["states"] == {"UNREPLIED": 1}
        assert endpoint["bytes"] == 29
        assert tcp["endpoints"][0]["bytes"] > 100


def test_the_tables_read_well_in_a_pipe(host: Host) -> None:
    vip = ADDRESSES["IPv4"][0]
    start(host, "nftables", "IPv4")
    with listening(host, "IPv4"), closing(connect(host, vip)):
        done = host.run("kpctl", "connections", "--socket", host.socket)
        head, row = done.stdout.splitlines()
        assert head.split("  ")[0] == "service port"
        assert row.split() == ["shop/web:http/TCP", "10.244.1.5:8080", "1", "1", "ESTABLISHED", "-"]
        assert "1 flows of 1 service ports; bytes are not counted" in done.stderr
        wide = host.run("kpctl", "connections", "--socket", host.socket, "-o", "wide").stdout
        assert "10.96.0.10:80" in wide.splitlines()[1]


def test_a_service_that_does_not_exist_is_named(host: Host) -> None:
    start(host, "nftables", "IPv4")
    for wanted in ("no/such", "10.96.0.99:80", "31999"):
        done = host.run("kpctl", "connections", "--socket", host.socket, wanted)
        assert done.returncode == 7
        assert f"no Service {wanted} is served" in done.stderr
