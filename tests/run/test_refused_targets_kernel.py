"""Refused endpoints with a real daemon: nothing of them in the kernel, and a line in the log."""

from __future__ import annotations

import pytest
from tests.support.host import Host
from tests.support.served import WEB, until_programmed, write

pytestmark = pytest.mark.kernel

MODES = ("nftables", "iptables", "userspace")
BAD = WEB.replace(
    '{addresses: ["10.244.1.5"], nodeName: worker-a}',
    "{addresses: [10.244.1.5]}, {addresses: [127.0.0.1]}, {addresses: [169.254.169.254]}",
)


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
