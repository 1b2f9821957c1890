"""Reads flows where the mode of a proxy leaves them: conntrack, IPVS, or the proxy itself.

The tables are those of the network namespace this runs in. They are examined as they arrive, so
that a million entries need no memory of that size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TextIO

from kpctl.connections.flows import Flow, Tally, end_text, find_plan, is_over
from kpctl.connections.ipvs_text import IpvsConnection, parse_connections
from kpctl.snapshot.client import Client
from kpctl.snapshot.types import Snapshot
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import Family, ServicePortId
from kubeproxy.inspection.types import CarriedConnections
from kubeproxy.kernel.conntrack.entries import Entry
from kubeproxy.kernel.conntrack.table import Conntrack
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.types import ServicePlan

IPVS_CONNECTIONS = Path("/proc/net/ip_vs_conn")


def frontends_of(snapshot: Snapshot) -> dict[Family, Frontends]:
    return {
        family: Frontends(pipeline.node, pipeline.plans())
        for family, pipeline in snapshot.pipelines.items()
    }


def gather(
    snapshot: Snapshot,
    client: Client | None,
    *,
    limit: int = 0,
    only: Collection[tuple[Family, ServicePortId]] | None = None,
) -> Tally:
    """Collect the flows of Services in the snapshot. Raises ProxyError."""
    nodes = {family: pipeline.node for family, pipeline in snapshot.pipelines.items()}
    tally = Tally(nodes, limit=limit, only=only)
    match snapshot.mode:
        case "ipvs":
            with _open_ipvs() as lines:
                add_ipvs(tally, frontends_of(snapshot), parse_connections(lines))
        case "userspace":
            if client is None:
                raise ProxyError(
                    "in userspace mode the proxy itself carries connections: ask a running one"
                )
            with closing(client):
                add_carried(tally, snapshot, client.connections(limit))
        case _:
            _add_conntrack(tally, snapshot)
    return tally


def _open_ipvs() -> TextIO:
    try:
        return IPVS_CONNECTIONS.open()
    except OSError as error:
        raise ProxyError(f"{IPVS_CONNECTIONS}: {error.strerror}; is ip_vs loaded?") from error


def _add_conntrack(tally: Tally, snapshot: Snapshot) -> None:
    for family, frontends in frontends_of(snapshot).items():
        with Conntrack(family) as table:
            for entries in table.entries():
                for entry in entries:
                    add_entry(tally, family, frontends, entry)


def add_entry(tally: Tally, family: Family, frontends: Frontends, entry: Entry) -> None:
    """Add an entry of conntrack if it is a Service's, or one of a Service that is gone."""
    plan = frontends.find(entry.protocol, entry.destination)
    if plan is None and not tally.is_orphan(family, entry.destination, entry.reply_source):
        return
    state = entry.state
    counters = entry.counters
    flow = Flow(
        client=end_text(entry.source),
        frontend=end_text(entry.destination),
        endpoint=end_text(entry.reply_source),
        state=state,
        packets=sum(c.packets for c in counters) if counters else None,
        bytes=sum(c.bytes for c in counters) if counters else None,
    )
    if not is_over(entry.protocol, state):
        tally.add(family, plan, flow)


def add_ipvs(
    tally: Tally, frontends: Mapping[Family, Frontends], found: Iterable[IpvsConnection]
) -> None:
    """Add IPVS connections. Every one is a Service's: virtual servers of others are left out."""
    for each in found:
        plan = find_plan(frontends, each.family, each.protocol, each.virtual)
        if plan is not None and not is_over(each.protocol, each.state):
            client, virtual, real = map(end_text, (each.client, each.virtual, each.real))
            tally.add(each.family, plan, Flow(client, virtual, real, each.state))


def add_carried(tally: Tally, snapshot: Snapshot, carried: CarriedConnections) -> None:
    """Add what the proxy itself carries; it shows counts, and only some flows one by one."""
    plans = {(family, plan.id): plan for family, plan in snapshot.plans()}
    for family, found in carried.families.items():
        clients: dict[tuple[ServicePortId, str], list[str]] = {}
        for flow in found.flows:
            clients.setdefault((flow.owner, flow.endpoint), []).append(flow.client)
        for count in found.counts:
            plan = plans.get((family, count.owner))
            known = clients.get((count.owner, count.endpoint), [])
            _add_count(tally, family, plan, count.endpoint, count.open, known)


def _add_count(
    tally: Tally,
    family: Family,
    plan: ServicePlan | None,
    endpoint: str,
    open_now: int,
    clients: list[str],
) -> None:
    for number in range(open_now):
        client = clients[number] if number < len(clients) else ""
        tally.add(family, plan, Flow(client, "", endpoint, "CARRIED"))
