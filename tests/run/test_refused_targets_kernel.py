"""Refused endpoints with a real daemon: nothing of them in the kernel, and a line in the log."""

from __future__ import annotations

import pytest
from tests.support.host import Host
from tests.support.objects_text import at, service_text, slice_text
from tests.support.served import WEB, until_programmed, write

pytestmark = pytest.mark.kernel

MODES = ("nftables", "iptables", "userspace")
BAD = WEB.replace(
    '{addresses: ["10.244.1.5"], nodeName: worker-a}',
    "{addresses: [10.244.1.5]}, {addresses: [127.0.0.1]}, {addresses: [169.254.169.254]}",
)
HEALTH = 10256
TAKES_HEALTH = service_text(
    "10.96.0.10", ports=f"{{name: http, port: 80, nodePort: {HEALTH}}}", spec="type: NodePort"
) + slice_text(at("10.244.1.5", "worker-a"))


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_endpoint_is_in_no_rule(host: Host, mode: str) -> None:
    write(host, "web.yaml", BAD)
    host.start(f"--proxy-mode={mode}", "--v=2")
    host.until(lambda: '"Serving"' in host.log, "the first sync")
    until_programmed(host, "10.96.0.10")
    assert "169.254.169.254" not in host.tables()
    assert "127.0.0.1:8080" not in host.tables()
    refused = "127.0.0.1:8080 (a loopback address), 169.254.169.254:8080 (a link-local address)"
    assert f'"Addresses of a Service are refused" err="{refused}" service="shop/web"' in host.log
    explained = host.run("kpctl", "explain", "shop/web", "--socket", host.socket).stdout
    assert "refused: a link-local address" in explained


@pytest.mark.parametrize("mode", MODES)
def test_a_node_port_is_not_the_health_port(host: Host, mode: str) -> None:
    """The kubelet's question would go to a Service: a rule wins over what listens on the node."""
    write(host, "web.yaml", TAKES_HEALTH)
    host.start(f"--proxy-mode={mode}", "--v=2")
    until_programmed(host, "10.96.0.10")
    host.until(lambda: host.get(HEALTH, "/healthz")[0] == 200, "the health port")
    assert str(HEALTH) not in host.tables()
    refused = "node port 10256 (a port of kube-proxy's own servers)"
    assert f'"Addresses of a Service are refused" err="{refused}" service="shop/web"' in host.log
