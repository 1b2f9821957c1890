"""Counters per Service, bounded in number: connections, bytes, refused packets.

A node may serve 10,000 Services, and each series costs memory here and in Prometheus. The first
Services that have traffic get series of their own, and keep them: a counter that moved between
Services would fall. All others count together, as the Service `other` without a namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import astuple

from kubeproxy.facts.ids import ServiceName
from kubeproxy.modes.base import Owner, RefusedPackets
from kubeproxy.status.families import Metric
from kubeproxy.status.metric_table import SERVICE_COUNTERS

OTHER = ServiceName("", "other")

_CONNECTIONS, _BYTES, _REFUSED, _OVERRUNS = SERVICE_COUNTERS


class ServiceCounters:
    """The counts of up to `most` Services, and of all others together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[ServiceName, ServiceName] = {}
        self._connections: dict[ServiceName, int] = {}
        self._bytes: dict[tuple[ServiceName, str], int] = {}
        self._refused: dict[tuple[ServiceName, str, str], int] = {}
        self._last_refused: Mapping[tuple[Owner, str, str], int] = {}
        self.overruns = 0

    def connected(self, service: ServiceName) -> None:
        """Count a new connection."""
        name = self._series(service)
        self._connections[name] = self._connections.get(name, 0) + 1

    def ended(self, service: ServiceName, *, sent: int, received: int) -> None:
        """Count the bytes of a connection that has ended."""
        name = self._series(service)
        for direction, amount in (("sent", sent), ("received", received)):
            key = (name, direction)
            self._bytes[key] = self._bytes.get(key, 0) + amount

    def refused(self, counts: Iterable[RefusedPackets]) -> None:
        """Add what the kernel has counted since the last call. What was counted before is not.

        A rule that was written again counts from 0: then all of it is new.
        """
        found: dict[tuple[Owner, str, str], int] = {}
        for each in counts:
            key = (each.owner, each.action, each.reason)
            found[key] = found.get(key, 0) + each.packets
        for (owner, action, reason), packets in found.items():
            before = self._last_refused.get((owner, action, reason), 0)
            new = packets - before if packets >= before else packets
            if new:
                place = (self._series(owner.service), action, reason)
                self._refused[place] = self._refused.get(place, 0) + new
        self._last_refused = found

    def _series(self, service: ServiceName) -> ServiceName:
        name = self._names.get(service)
        if name is None:
            if len(self._names) >= self._most:
                return OTHER
            name = self._names[service] = service
        return name

    def collect(self) -> Iterator[Metric]:
        connections = _family(_CONNECTIONS.name)
        for name, count in self._connections.items():
            connections.add(astuple(name), count)
        yield connections
        bytes_moved, refused = _family(_BYTES.name), _family(_REFUSED.name)
        for (name, direction), count in self._bytes.items():
            bytes_moved.add((*astuple(name), direction), count)
        for (name, action, reason), count in self._refused.items():
            refused.add((*astuple(name), action, reason), count)
        yield from (bytes_moved, refused)
        overruns = _family(_OVERRUNS.name)
        overruns.add((), self.overruns)
        yield overruns


def _family(name: str) -> Metric:
    spec = next(spec for spec in SERVICE_COUNTERS if spec.name == name)
    return Metric(name, "counter", spec.help_text, spec.labels)
