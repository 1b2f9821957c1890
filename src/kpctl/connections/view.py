"""Grouped flows as data for programs and as rows for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kpctl.connections.flows import EndpointFlows

HEADINGS = ("service port", "endpoint", "flows", "states", "bytes", "stale")
FLOW_HEADINGS = ("service port", "client", "sent to", "endpoint", "state", "bytes", "stale")
ORPHAN = "(no Service)"


def documents(groups: Iterable[EndpointFlows]) -> list[dict[str, object]]:
    """One document per service port and family."""
    found: dict[tuple[object, ...], dict[str, object]] = {}
    endpoints: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for group in groups:
        key = (group.owner, group.family)
        endpoints.setdefault(key, []).append(_endpoint(group))
        found[key] = {
            "service": group.owner.label if group.owner else None,
            "protocol": group.owner.protocol.value if group.owner else None,
            "ipFamily": group.family.value,
            "endpoints": endpoints[key],
        }
    return list(found.values())


def _endpoint(group: EndpointFlows) -> dict[str, object]:
    document: dict[str, object] = {
        "endpoint": group.endpoint,
        "connections": group.count,
        "states": dict(group.states),
        "packets": group.packets,
        "bytes": group.bytes,
        "stale": group.stale or None,
    }
    if group.flows:
        document["flows"] = [
            {
                "client": flow.client,
                "sentTo": flow.frontend,
                "state": flow.state,
                "packets": flow.packets,
                "bytes": flow.bytes,
            }
            for flow in group.flows
        ]
    return document


def rows(groups: Iterable[EndpointFlows]) -> list[Sequence[str]]:
    """One row per service port and endpoint."""
    return [
        (
            _owner(group),
            group.endpoint,
            str(group.count),
            "\n".join(f"{count} {state}" for state, count in Counter(group.states).most_common()),
            size_text(group.bytes),
            group.stale,
        )
        for group in groups
    ]


def flow_rows(groups: Iterable[EndpointFlows]) -> list[Sequence[str]]:
    """One row per flow that was kept."""
    return [
        (
            *(_owner(group), flow.client or "-", flow.frontend or "-", flow.endpoint),
            *(flow.state, size_text(flow.bytes), group.stale),
        )
        for group in groups
        for flow in group.flows
    ]


def summary(groups: Sequence[EndpointFlows]) -> str:
    """The last line for people."""
    flows = sum(group.count for group in groups)
    stale = sum(group.count for group in groups if group.stale)
    ports = len({(group.family, group.owner) for group in groups if group.owner})
    text = f"{flows} flows of {ports} service ports"
    if stale:
        text += f", {stale} of them stale"
    if flows and all(group.bytes is None for group in groups):
        text += "; bytes are not counted (see --help)"
    return text


def _owner(group: EndpointFlows) -> str:
    return str(group.owner) if group.owner else ORPHAN


def size_text(count: int | None) -> str:
    """Bytes in a unit that suits them; `-` if unknown."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
