"""Manifests for the real programs, and waiting until they are programmed."""

from __future__ import annotations

import json
from datetime import datetime

from tests.support.host import Host
from tests.support.objects_text import at, service_text, slice_text

WEB = service_text("10.96.0.10") + slice_text(at("10.244.1.5", "worker-a"))
BALANCED = service_text(
    "10.96.0.20",
    "lb",
    ports="{name: http, port: 80, nodePort: 30080}",
    spec="type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32123",
    status="{loadBalancer: {ingress: [{ip: 203.0.113.7}]}}",
) + slice_text(at("10.244.1.6", "worker-a"), name="lb")
BAD = "{kind: Service, metadata: {name: bad}}\n"


def write(host: Host, name: str, text: str) -> None:
    (host.manifests / name).write_text(text)


def until_programmed(host: Host, address: str) -> None:
    host.until(lambda: address in host.tables(), f"programming {address}")


def until_serving(host: Host) -> None:
    """Wait for the end of the first round of both families; an address is there before that."""
    host.until(lambda: '"Serving"' in host.log, "the first sync of both families")


def until_synced_after(host: Host, moment: datetime, family: str) -> None:
    """Wait for a round that ended later. The daemon shows what it holds before that."""

    def is_synced() -> bool:
        done = host.run("kpctl", "status", "--socket", host.socket, "-o", "json")
        families = json.loads(done.stdout)["families"] if done.stdout else []
        ends = [each["lastSyncAt"] for each in families if each["ipFamily"] == family]
        return any(end and datetime.fromisoformat(end) > moment for end in ends)

    host.until(is_synced, f"a round after {moment}")
