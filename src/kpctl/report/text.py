"""An explanation as text: paragraphs that a terminal wraps and a pipe does not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from kpctl.look.moments import ago, clock_text
from kpctl.report.endpoints import EndpointReport, weight_text
from kpctl.report.sources import Way
from kpctl.report.types import Explanation, FrontendReport, PortReport, ServiceReport

Paragraph = tuple[int, str]
"""An indent and a text."""

MOST_ENDPOINTS = 20
MOST_OBJECTS = 12
MOST_CHANGES = 5


def explanation_text(found: Explanation, *, is_wide: bool = False) -> Iterator[Paragraph]:
    """The whole answer. With `is_wide` nothing is shortened."""
    yield 0, f"{found.asked}, as node {found.node} sees it in {found.mode} mode ({found.origin})"
    yield from _bullets(0, found.faults)
    for service in found.services:
        yield from _service(service, found.now, is_wide=is_wide)


def _service(service: ServiceReport, now: datetime | None, *, is_wide: bool) -> Iterator[Paragraph]:
    for port in service.ports:
        yield 0, ""
        yield from _port(port, now, is_wide=is_wide)
    history = [*_history(service, now, is_wide=is_wide)]
    if history:
        yield 0, ""
        yield 0, f"{service.service}: history"
        yield from history


def _port(port: PortReport, now: datetime | None, *, is_wide: bool) -> Iterator[Paragraph]:
    yield 0, f"{port.label}: {headline(port)}"
    yield from _bullets(2, port.faults)
    yield from _bullets(2, (f"refused: {each.reason}" for each in port.refused))
    yield from _bullets(2, _claims(port))
    yield from ((2, f"note: {text}") for text in port.notes)
    yield 2, policies_text(port)
    for frontend in port.frontends:
        yield from _frontend(frontend, len(port.endpoints))
    yield 2, f"endpoints: {port.used} of {len(port.endpoints)} used"
    yield from _endpoints(port.endpoints, now, is_wide=is_wide)
    yield 2, "in the kernel:"
    yield from _shortened(4, port.kernel_objects, is_wide=is_wide)


def headline(port: PortReport) -> str:
    """What matters most about a service port, in a few words."""
    if port.refused:
        return "REFUSED"
    verdicts = {client.verdict for each in port.frontends for client in each.clients}
    if verdicts == {"forward"}:
        return f"served by {port.used} of {len(port.endpoints)} endpoints"
    others = " and ".join(f"{verdict}s" for verdict in sorted(verdicts - {"forward"}))
    some = "some connections" if "forward" in verdicts else "connections"
    return f"{others.upper()} {some}"


def _claims(port: PortReport) -> Iterator[str]:
    if port.claimed_by:
        first = min(port.service_port, *port.claimed_by)
        yield (
            f"also claimed by {', '.join(port.claimed_by)}: of service ports with the same address"
            f" and port the first by name is served, {first}"
        )


def policies_text(port: PortReport) -> str:
    """Policies and affinity in one line."""
    policies = f"policies: internal {port.internal_traffic_policy}"
    if len(port.frontends) > 1:
        policies += f", external {port.external_traffic_policy}"
    seconds = port.affinity_seconds
    algorithm = f"; algorithm {port.algorithm}" if port.algorithm else ""
    checked = f"; health check {port.health_check}" if port.health_check else ""
    drained = f"; draining: {port.draining}" if port.draining else ""
    stays = f"a client stays for {seconds} s" if seconds else "no affinity"
    return f"{policies}; {stays}{algorithm}{checked}{drained}"


def _frontend(frontend: FrontendReport, known: int) -> Iterator[Paragraph]:
    yield 2, f"arrives at {frontend.kind} {', '.join(frontend.at)}"
    for text, clients in _same_ways(frontend.clients, known).items():
        yield 4, f"from {' and '.join(clients)}: {text}"


def _same_ways(clients: Iterable[Way], known: int) -> dict[str, list[str]]:
    """What happens, and to which clients the same happens."""
    found: dict[str, list[str]] = {}
    for client in clients:
        found.setdefault(_way(client, known), []).append(client.source)
    return found


def _way(way: Way, known: int) -> str:
    if not way.is_forwarded:
        return f"{way.verdict} ({way.because})"
    count = len(way.endpoints)
    targets = way.endpoints[0] if count == 1 else f"{count} of {known} endpoints"
    shown = "with the node's address" if way.is_masqueraded else "with its own address"
    return f"forward to {targets} ({way.because}), {shown} ({way.masquerade_because})"


def _endpoints(
    endpoints: Sequence[EndpointReport], now: datetime | None, *, is_wide: bool
) -> Iterator[Paragraph]:
    # What is left out is what people look for.
    ordered = sorted(endpoints, key=lambda endpoint: endpoint.is_used)
    yield from _shortened(
        4, [_endpoint(each, now) for each in ordered], is_wide=is_wide, most=MOST_ENDPOINTS
    )


def _endpoint(endpoint: EndpointReport, now: datetime | None) -> str:
    place = f" on {endpoint.node}" if endpoint.node else ""
    parts = [endpoint.because, endpoint.state, weight_text(endpoint.weight)]
    why = "; ".join(dict.fromkeys(filter(None, parts)))
    since = f", since {clock_text(endpoint.since, now)}" if endpoint.since and now else ""
    return f"{'in ' if endpoint.is_used else 'out'} {endpoint.at}{place}: {why}{since}"


def _history(service: ServiceReport, now: datetime | None, *, is_wide: bool) -> Iterator[Paragraph]:
    yield from _bullets(2, (f"{p.kind} {p.name}: {p.reason}" for p in service.problems))
    if now is None:
        return
    yield 2, f"last changed: {changed_text(service, now)}"
    changes = [
        f"{ago(change.at, now)}: {change.endpoint} {change.before or 'absent'} →"
        f" {change.after or 'absent'}"
        for change in reversed(service.endpoint_changes)
    ]
    yield from _shortened(4, changes, is_wide=is_wide, most=MOST_CHANGES)


def changed_text(service: ServiceReport, now: datetime) -> str:
    """When and by which event a Service last changed."""
    if service.changed is not None:
        return f"{clock_text(service.changed.at, now)}: {service.changed.event}"
    since = service.remembered_since
    return f"not lately (the proxy started {ago(since, now)})" if since else "unknown"


def _shortened(
    indent: int, texts: Sequence[str], *, is_wide: bool, most: int = MOST_OBJECTS
) -> Iterator[Paragraph]:
    shown = texts if is_wide or len(texts) <= most + 1 else texts[:most]
    yield from ((indent, text) for text in shown)
    if len(shown) < len(texts):
        yield indent, f"… and {len(texts) - len(shown)} more (-o wide shows all)"


def _bullets(indent: int, texts: Iterable[str]) -> Iterator[Paragraph]:
    yield from ((indent, f"! {text}") for text in texts)
