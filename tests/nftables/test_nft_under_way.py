"""No packet falls through while endpoints come and go, in the real kernel at full rate."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest
from tests.support import flood
from tests.support.builders import endpoint, port, service
from tests.support.nft_kit import Proxy, run
from tests.support.waiting import LIMIT_SECONDS, limit, until

from kubeproxy.facts.ids import Family, Protocol

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("namespace", "closing")]

CHANGES, PACKETS = 200, 10_000
CLUSTER_IP = "10.96.0.10"
PODS = [endpoint(f"10.244.0.{number}", 8080) for number in range(1, 9)]

# The counter in `output` stands right behind our translation: what still has the cluster IP there
# found no endpoint. What found one is taken off the wire.
PROBE = f"""
table ip probe {{
  chain output {{
    type filter hook output priority -50
    ip daddr {CLUSTER_IP} counter
  }}
  chain input {{
    type filter hook input priority -50
    ip daddr 10.244.0.0/24 counter drop
  }}
}}
"""


@contextmanager
def flooding() -> Iterator[None]:
    command = [sys.executable, str(Path(flood.__file__)), CLUSTER_IP, "53"]
    sender = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert sender.stdin is not None
        sender.stdin.close()
        sender.wait(LIMIT_SECONDS)


def counted(chain: str) -> int:
    found = re.search(r"packets (\d+)", run(f"nft list chain ip probe {chain}"))
    assert found is not None
    return int(found[1])


async def test_no_new_flow_is_lost_while_endpoints_come_and_go() -> None:
    """Shrinking, growing, and a turn to affinity and back, as fast as the kernel takes them."""
    run("ip route add default dev lo")
    run("ip route add local 10.200.0.0/13 dev lo")
    for pod in PODS:
        run(f"ip addr add {pod.address}/32 dev lo")
    run("nft -f -", PROBE)
    run("sysctl -qw net.netfilter.nf_conntrack_udp_timeout=1")
    proxy = Proxy(Family.IPV4)
    plain = service(cluster_ip=CLUSTER_IP, ports=[port(53, protocol=Protocol.UDP)])
    sticky = service(
        cluster_ip=CLUSTER_IP, ports=[port(53, protocol=Protocol.UDP)], affinity_seconds=1
    )
    proxy.want(plain, PODS)
    await proxy.sync()
    states = cycle(
        ((plain, PODS[:1]), (plain, PODS), (plain, PODS[4:]), (sticky, PODS[4:]), (plain, PODS))
    )
    with flooding():
        await until(lambda: counted("input"))
        async with limit():
            for _ in range(CHANGES):
                proxy.want(*next(states))
                await proxy.apply()
        await until(lambda: counted("input") > PACKETS)
    assert counted("output") == 0
