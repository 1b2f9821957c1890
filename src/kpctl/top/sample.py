"""What happened during one interval: connections per service port, refusals, rounds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kpctl.connections.flows import is_at
from kubeproxy.facts.ids import Family, ServicePortId
from kubeproxy.inspection.types import History, Round
from kubeproxy.modes.base import RefusedPackets

ServicePort = tuple[Family, ServicePortId]
RefusedKey = tuple[ServicePortId, str, str]


class Row(Struct, frozen=True):
    """One service port. `endpoints` counts its new connections by endpoint."""

    family: Family
    owner: ServicePortId
    connections: int
    endpoints: Mapping[str, int]
    rejected: int = 0
    dropped: int = 0
    reason: str = ""


class Rounds(Struct, frozen=True):
    """The rounds of the interval, or the last one before it if there was none.

    `latencies` counts changes whose time is known, `worst` is the slowest from the API server's
    time stamp to the commit.
    """

    count: int = 0
    seconds: float = 0.0
    last_seconds: float | None = None
    latencies: int = 0
    worst_latency_seconds: float = 0.0


class Sample(Struct, frozen=True):
    """One interval."""

    seconds: float
    rows: Sequence[Row]
    rounds: Rounds = Rounds()
    overruns: int = 0
    notes: tuple[str, ...] = ()

    def rate(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0


class Traffic:
    """New connections, counted until they are taken."""

    def __init__(self) -> None:
        self._counts: dict[ServicePort, Counter[str]] = {}

    def add(self, family: Family, owner: ServicePortId, endpoint: str, count: int = 1) -> None:
        self._counts.setdefault((family, owner), Counter())[endpoint] += count

    def take(self) -> dict[ServicePort, Counter[str]]:
        taken, self._counts = self._counts, {}
        return taken


def rows_of(
    traffic: Mapping[ServicePort, Counter[str]], refused: Mapping[Family, Mapping[RefusedKey, int]]
) -> list[Row]:
    """The rows of everything that happened: most connections first, then most refusals."""
    refusals: dict[ServicePort, dict[RefusedKey, int]] = {}
    for family, found in refused.items():
        for key, packets in found.items():
            refusals.setdefault((family, key[0]), {})[key] = packets
    rows = []
    for family, owner in {**dict.fromkeys(traffic), **dict.fromkeys(refusals)}:
        endpoints = traffic.get((family, owner), Counter())
        of_port = refusals.get((family, owner), {})
        rows.append(
            Row(
                family=family,
                owner=owner,
                connections=endpoints.total(),
                endpoints=dict(endpoints.most_common()),
                rejected=sum(n for (_, action, _), n in of_port.items() if action == "reject"),
                dropped=sum(n for (_, action, _), n in of_port.items() if action == "drop"),
                reason=", ".join(sorted({reason for _, _, reason in of_port})),
            )
        )
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple[int, int, ServicePortId, str]:
    return -row.connections, -(row.rejected + row.dropped), row.owner, row.family.value


def chosen(sample: Sample, only: Collection[ServicePort] | None, pod: str = "") -> Sample:
    """The same with the rows of these service ports, and with `pod` only those it serves."""
    rows = [
        row
        for row in sample.rows
        if (only is None or (row.family, row.owner) in only)
        and (not pod or any(is_at(endpoint, pod) for endpoint in row.endpoints))
    ]
    return replace(sample, rows=rows)


def refused_since(
    before: Mapping[RefusedKey, int], counts: Iterable[RefusedPackets]
) -> tuple[dict[RefusedKey, int], dict[RefusedKey, int]]:
    """What was refused since `before`, and what to compare with next time.

    A rule that was written again counts from 0: then all of it is new.
    """
    now: dict[RefusedKey, int] = {}
    for each in counts:
        key = (each.owner, each.action, each.reason)
        now[key] = now.get(key, 0) + each.packets
    new = {
        key: packets - held if packets >= (held := before.get(key, 0)) else packets
        for key, packets in now.items()
    }
    return {key: packets for key, packets in new.items() if packets}, now


def rounds_since(history: History, since: float) -> Rounds:
    """What the daemon's rounds after this time cost."""
    fresh = [each for each in history.rounds if each.at > since]
    last: Round | None = history.rounds[-1] if history.rounds else None
    return Rounds(
        count=len(fresh),
        seconds=sum(each.seconds for each in fresh),
        last_seconds=last.seconds if last else None,
        latencies=sum(each.latencies for each in fresh),
        worst_latency_seconds=max((each.worst_latency_seconds for each in fresh), default=0.0),
    )
