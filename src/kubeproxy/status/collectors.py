"""Metrics that are read when scraped instead of counted: kernel packet counters, the start time.

Names and HELP texts come from `metric_table`, and the values from the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from kubeproxy.status.metric_table import NFACCT_OBJECTS, PACKET_COUNTERS
from kubeproxy.status.process import ProcessCollector

PacketCount: TypeAlias = Callable[[str], int | None]
"""Reads one accounting object of the kernel by name. Returns None if there is none."""


class PacketCounters(Collector):
    """Packets counted by iptables rules, read from the kernel's accounting objects."""

    def __init__(self, packet_count: PacketCount) -> None:
        self._packet_count = packet_count

    def collect(self) -> Iterator[Metric]:
        for spec in PACKET_COUNTERS:
            packets = self._packet_count(NFACCT_OBJECTS[spec.name])
            if packets is not None:
                name = spec.name.removesuffix("_total")  # the library appends it
                yield CounterMetricFamily(name, spec.help_text, value=packets)


class OnlyStartTime(Collector):
    """The one process metric that service level indicators need."""

    def __init__(self, process: ProcessCollector) -> None:
        self._process = process

    def collect(self) -> Iterator[Metric]:
        return (f for f in self._process.collect() if f.name == "process_start_time_seconds")
