"""What the program says and shows after its start, as upstream's v1.36.4 does on the same host."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.host import Host

from kpctl.apiserver.small import SmallApiServer

pytestmark = pytest.mark.kernel

METRICS = 10249
NODE: dict[str, object] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "worker-a"},
    "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}]},
}
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}
"""
REMEDY = (
    "open /proc/sys/net/netfilter/nf_conntrack_max: permission denied; set it on the host"
    " (sysctl -w net.netfilter.nf_conntrack_max=131072), or leave it as it is with"
    " --conntrack-max-per-core=0"
)
SIZED = ("--conntrack-max-per-core=1", "--conntrack-min=131072")


@pytest.fixture
async def server(host: Host) -> AsyncIterator[SmallApiServer]:
    """An API server in the namespace, with the Node."""
    made = SmallApiServer()
    with host.network.inside():
        async with made.serving():
            await made.create("nodes", "", NODE)
            yield made


async def initialize(host: Host, server: SmallApiServer, *flags: str) -> tuple[int, list[str]]:
    """Run until the host is prepared. Return the exit code, and the log without time and place."""
    argv = (f"--master={server.url}", "--hostname-override=worker-a", "--init-only", *flags)
    done = await asyncio.to_thread(host.run, "kube-proxy", "--oom-score-adj=0", *argv)
    return done.returncode, [re.sub(r"^[IE].*?\] ", "", x) for x in done.stderr.splitlines()]


async def test_what_cannot_be_set_ends_the_start_with_the_remedy(
    host: Host, server: SmallApiServer
) -> None:
    """The size of the table belongs to the host, also for root in another network namespace."""
    code, lines = await initialize(host, server, "--proxy-mode=nftables", *SIZED)
    assert code == 1
    at = lines.index('"Setting nf_conntrack_max" nfConntrackMax=131072')
    assert lines[at + 1] == '"Set sysctl" entry="net/netfilter/nf_conntrack_max" value=131072'
    assert lines[at + 2].endswith(f'parameters from kube-proxy configuration: {REMEDY}"')
    assert lines[at + 3].startswith('"command failed"')


def test_on_a_host_without_a_cluster_it_is_a_warning(host: Host) -> None:
    (host.manifests / "web.yaml").write_text(SERVICE)
    before = Path("/sys/module/nf_conntrack/parameters/hashsize").read_text()
    process = host.start("--proxy-mode=nftables", *SIZED)
    host.until(lambda: "10.96.0.10" in host.tables(), "programming")
    assert host.log.count(REMEDY) == 1
    assert '"Set sysctl" entry="net/netfilter/nf_conntrack_tcp_timeout_established"' in host.log
    assert Path("/sys/module/nf_conntrack/parameters/hashsize").read_text() == before
    assert host.stop(process) == 0


async def test_notes_about_local_pods_are_upstreams(host: Host, server: SmallApiServer) -> None:
    flags = ("--proxy-mode=nftables", "--conntrack-max-per-core=0")
    _, lines = await initialize(host, server, *flags)
    assert (
        '"Detect-local-mode set to ClusterCIDR, but no cluster CIDR specified for primary IP'
        ' family" ipFamily="IPv4" clusterCIDRs=null'
    ) in lines
    assert '"kube-proxy running in dual-stack mode" primary ipFamily="IPv4"' in lines
    await server.patch("nodes", "", "worker-a", {"spec": {"podCIDRs": ["fd00:1::/64"]}})
    _, lines = await initialize(host, server, *flags, "--detect-local-mode=NodeCIDR")
    assert any("cluster is IPv4-primary but node.spec.podCIDRs" in line for line in lines)


async def test_a_host_without_ipv6_says_so_as_upstream_does(
    host: Host, server: SmallApiServer
) -> None:
    host.run("sysctl", "-w", "net.ipv6.conf.all.disable_ipv6=1")
    flags = ("--proxy-mode=iptables", "--conntrack-max-per-core=0")
    code, lines = await initialize(host, server, *flags)
    assert code == 0
    assert '"Kernel support disabled for family" ipFamily="IPv6"' in lines
    assert '"kube-proxy running in single-stack mode" ipFamily="IPv4"' in lines
    assert any(line.startswith('"Setting route_localnet=1 to allow node-') for line in lines)


def test_without_flags_the_service_account_is_tried(host: Host) -> None:
    """The note comes before the error, which it explains."""
    lines = host.run("kube-proxy").stderr.splitlines()
    assert lines[-3].endswith(
        '] "Neither kubeconfig file nor master URL was specified, falling back to in-cluster'
        ' config"'
    )
    assert "unable to load in-cluster configuration" in lines[-2]


def test_flags_are_shown_with_the_values_that_took_effect(host: Host) -> None:
    host.run("ip", "link", "add", "eth0", "type", "bridge")
    host.run("ip", "address", "add", "192.0.2.10/24", "dev", "eth0")
    host.run("ip", "link", "set", "eth0", "up")
    process = host.start("--proxy-mode=nftables", "--healthz-port=0", "-v=1")
    host.until(lambda: host.get(METRICS, "/healthz")[0] == 200, "start")
    _, page = host.get(METRICS, "/flagz")
    shown = dict(re.findall(r"^([a-z-]+)[:= ]+(.*)$", page, re.MULTILINE))
    assert shown["detect-local-mode"] == "ClusterCIDR"
    assert shown["healthz-port"] == "0" and not shown.get("healthz-bind-address")
    assert shown["nodeport-addresses"] == "[192.0.2.10/32]"
    assert 'FLAG: --nodeport-addresses="[primary]"' in host.log
    assert 'FLAG: --detect-local-mode="ClusterCIDR"' in host.log
    assert host.stop(process) == 0
