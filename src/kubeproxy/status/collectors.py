"""Metrics that are read when scraped instead of counted: kernel packet counters, the start time.

Names and HELP texts come from `metric_table`, and the values from the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from kubeproxy.status.families import Metric
from kubeproxy.status.metric_table import NFACCT_OBJECTS, PACKET_COUNTERS
from kubeproxy.status.process import ProcessCollector

PacketCount: TypeAlias = Callable[[str], int | None]
"""Reads one accounting object of the kernel by name. Returns None if there is none."""


class PacketCounters:
    """Packets counted by iptables rules, read from the kernel's accounting objects."""

    def __init__(self, packet_count: PacketCount) -> None:
        self._packet_count = packet_count

    def collect(self) -> Iterator[Metric]:
        for spec in PACKET_COUNTERS:
            packets = self._packet_count(NFACCT_OBJECTS[spec.name])
            if packets is not None:
                family = Metric(spec.name, "counter", spec.help_text)
                family.add((), packets)
                yield family


class OnlyStartTime:
    """The one process metric that service level indicators need."""

    def __init__(self, process: ProcessCollector) -> None:
        self._process = process

    def collect(self) -> Iterator[Metric]:
        return (f for f in self._process.collect() if f.name == "process_start_time_seconds")
