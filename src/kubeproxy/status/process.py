"""Metrics of our own process, read from /proc when scraped.

The names and meanings are those of Go's process collector, network counters included (they count
the network namespace, all interfaces together). Metrics whose files cannot be read are left out,
and a scrape never fails because of them.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from kubeproxy.status.families import Metric

_HELP = {
    "process_cpu_seconds_total": "Total user and system CPU time spent in seconds.",
    "process_max_fds": "Maximum number of open file descriptors.",
    "process_network_receive_bytes_total": "Bytes received over the network.",
    "process_network_transmit_bytes_total": "Bytes sent over the network.",
    "process_open_fds": "Number of open file descriptors.",
    "process_resident_memory_bytes": "Resident memory size in bytes.",
    "process_start_time_seconds": "Start time of the process since unix epoch in seconds.",
    "process_virtual_memory_bytes": "Virtual memory size in bytes.",
    "process_virtual_memory_max_bytes": "Maximum amount of virtual memory available in bytes.",
}

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProcessCollector:
    """The `process_*` families."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def collect(self) -> Iterator[Metric]:
        values = self.values()
        for name, text in _HELP.items():
            if name in values:
                yield _family(name, text, values[name])

    def values(self) -> dict[str, float]:
        """Return every value that can be read, by metric name."""
        found: dict[str, float] = {"process_max_fds": _limit(resource.RLIMIT_NOFILE)}
        found["process_virtual_memory_max_bytes"] = _limit(resource.RLIMIT_AS)
        for read in (self._stat, self._descriptors, self._network):
            try:
                found.update(read())
            except (OSError, ValueError, IndexError):
                continue  # /proc is of another kind or hidden: these metrics are absent
        return found

    def start_time_seconds(self) -> float:
        """Return the Unix time at which this process started, or 0 if it cannot be read."""
        return self.values().get("process_start_time_seconds", 0.0)

    def _stat(self) -> dict[str, float]:
        # The program's name may hold blanks and brackets; fields are counted after the last one.
        fields = (self._proc / "self/stat").read_text().rpartition(")")[2].split()
        user, system, start = int(fields[11]), int(fields[12]), int(fields[19])
        return {
            "process_cpu_seconds_total": (user + system) / _TICKS_PER_SECOND,
            "process_start_time_seconds": self._boot_time() + start / _TICKS_PER_SECOND,
            "process_virtual_memory_bytes": float(fields[20]),
            "process_resident_memory_bytes": float(int(fields[21]) * _PAGE_BYTES),
        }

    def _boot_time(self) -> int:
        for line in (self._proc / "stat").read_text().splitlines():
            if line.startswith("btime "):
                return int(line.split()[1])
        raise ValueError("no boot time in /proc/stat")

    def _descriptors(self) -> dict[str, float]:
        return {"process_open_fds": float(sum(1 for _ in (self._proc / "self/fd").iterdir()))}

    def _network(self) -> dict[str, float]:
        head, values = (
            line.split()[1:]
            for line in (self._proc / "self/net/netstat").read_text().splitlines()
            if line.startswith("IpExt:")
        )
        octets = dict(zip(head, map(float, values), strict=True))
        return {
            "process_network_receive_bytes_total": octets["InOctets"],
            "process_network_transmit_bytes_total": octets["OutOctets"],
        }


def _family(name: str, text: str, value: float) -> Metric:
    family = Metric(name, "counter" if name.endswith("_total") else "gauge", text)
    family.add((), value)
    return family


def _limit(which: int) -> float:
    soft = resource.getrlimit(which)[0]
    # RLIM_INFINITY is -1 in Python and the largest uint64 in Go, which shows it as a number.
    return float(2**64 - 1) if soft == resource.RLIM_INFINITY else float(soft)
