"""What keeping up costs the daemon's own engine: each figure is measured in a process of its own.

One process for one row, so that no row meets memory or garbage of another. It prints its
measurements as JSON. Nothing but the API server is left out: kernel, tools and engine are real, in
network namespaces made here.

    python -m kpctl.bench.scale_engine ROW SERVICES ENDPOINTS SAMPLES
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import islice

import msgspec

from kpctl.bench import iptables, spine, userspace
from kpctl.bench.bulk import service_addresses, service_of, slice_of
from kpctl.bench.growth import CountedMode, default_backend
from kpctl.bench.nftables import cold_start, one_change
from kpctl.bench.nftables_upkeep import repair, restart
from kpctl.bench.records import DIRECT, OURS, Measurement, Size
from kpctl.places.scratch import scratch_namespace
from kubeproxy.api import objects
from kubeproxy.api.source import Kind, Upsert
from kubeproxy.errors import ProxyError

SLICE_ENDPOINTS = 100
"""Of one EndpointSlice, as the control plane fills them."""

_MODULE = "kpctl.bench.scale_engine"

Note = Callable[[str, float, str], Measurement]
Measure = Callable[[Size, int], Coroutine[None, None, list[Measurement]]]


class EngineRow(msgspec.Struct, frozen=True, gc=False):
    """What to measure, at which size, and how many samples to take."""

    name: str
    size: Size
    samples: int

    def __str__(self) -> str:
        return f"{self.name}, {self.size}"


def _noting(mode: str, size: Size) -> Note:
    def note(name: str, value: float, unit: str) -> Measurement:
        return Measurement(mode, name, size, OURS, value, unit)

    return note


async def _cold_start(size: Size, samples: int) -> list[Measurement]:
    note, found = _noting("nftables", size), list[Measurement]()
    for _ in range(samples):
        spent = await cold_start(size, compare=False)
        found += (
            note("first round of the engine", spent.seconds, "s"),
            note("first round of the engine, CPU", spent.cpu_seconds, "CPU s"),
            note("first round of the engine, kernel's part", spent.kernel_seconds, "s"),
        )
    return found


async def _facts(size: Size, _samples: int) -> list[Measurement]:
    spent, note = spine.measure(size.services, size.endpoints), _noting("nftables", size)
    return [
        note("first lists, decoded", spent.decode_seconds, "CPU s"),
        note("first lists, as facts", spent.intake_seconds, "CPU s"),
        note("first lists, as plans", spent.plan_seconds, "CPU s"),
    ]


async def _repair(size: Size, samples: int) -> list[Measurement]:
    found, note = await repair(size, times=samples), _noting("nftables", size)
    return [
        note("one element deleted, repaired", found.median_seconds, "s"),
        note("one element deleted, repaired, worst", found.worst_seconds, "s"),
        note("one element deleted, full reads", found.full_reads, "reads"),
    ]


async def _restart(size: Size, _samples: int) -> list[Measurement]:
    found, note = await restart(size), _noting("nftables", size)
    return [
        note("restart over an existing table", found.restart_seconds, "s"),
        note("restart over an existing table, cold start beside it", found.cold_seconds, "s"),
        note("restart over an existing table, items written", found.changes, "items"),
    ]


async def _changes(size: Size, samples: int) -> list[Measurement]:
    note, found = _noting("nftables", size), list[Measurement]()
    for change in await one_change(size, rounds=samples):
        name = f"engine, endpoint {change.kind}"
        found += (
            note(name, change.median_ms, "ms"),
            note(f"{name}, kernel's part", change.kernel_ms, "ms"),
            note(f"{name}, without waiting for packets", change.work_ms, "ms"),
        )
    return found


async def _large_service(size: Size, samples: int) -> list[Measurement]:
    """One Service with all endpoints, of which one after another is replaced."""
    note, found = _noting("nftables", size), list[Measurement]()
    decoder = msgspec.json.Decoder(objects.EndpointSlice)
    with scratch_namespace():
        backend = default_backend("nftables")
        counted = CountedMode(backend, Size(0))
        await counted.load()
        texts = iter(_slice_texts(size.endpoints, samples))
        first = islice(texts, -(-size.endpoints // SLICE_ENDPOINTS))
        kept = [Upsert(Kind.ENDPOINT_SLICE, decoder.decode(text)) for text in first]
        await counted.send(Upsert(Kind.SERVICE, service_of(0)), *kept)
        gc.collect()
        for text in texts:
            started = time.perf_counter()
            event = Upsert(Kind.ENDPOINT_SLICE, decoder.decode(text))
            decoded = time.perf_counter()
            await counted.send(event)
            committed = time.perf_counter()
            found += (
                note("large Service, endpoint replaced", (committed - started) * 1000, "ms"),
                note("large Service, slice decoded", (decoded - started) * 1000, "ms"),
            )
        await backend.close()
    return found


def _slice_texts(endpoints: int, samples: int) -> list[bytes]:
    """The slices of one Service as JSON, then one after another with its last endpoint replaced.

    The new address is anywhere among the others, as that of a new pod is.
    """
    known = service_addresses(0, 2 * endpoints)
    addresses, spare = known[::2], known[1::2]
    starts = range(0, endpoints, SLICE_ENDPOINTS)
    texts = [_slice_text(start, addresses[start : start + SLICE_ENDPOINTS]) for start in starts]
    for number in range(samples):
        start = starts[number * 7 % len(starts)]
        kept = addresses[start : start + SLICE_ENDPOINTS - 1]
        texts.append(_slice_text(start, [*kept, spare[number * 1237 % endpoints]]))
    return texts


def _slice_text(start: int, addresses: Sequence[str]) -> bytes:
    found = slice_of(0, addresses)
    metadata = msgspec.structs.replace(found.metadata, name=f"svc-0-{start}")
    return msgspec.json.encode(msgspec.structs.replace(found, metadata=metadata))


async def _iptables_nft(size: Size, samples: int) -> list[Measurement]:
    note, found = _noting("iptables", size), list[Measurement]()
    for _ in range(samples):
        seconds, cpu_seconds = await iptables.first_sync(iptables.Bench(size, "nft"))
        found.append(note("first sync with iptables-nft", seconds, "s"))
        found.append(note("first sync with iptables-nft, CPU", cpu_seconds, "CPU s"))
    return found


async def _userspace(size: Size, samples: int) -> list[Measurement]:
    """Against HAProxy, which is no kube-proxy: its part is the ratio."""
    # It has an event loop of its own.
    _, short, _ = await asyncio.to_thread(userspace.run, samples)
    note = _noting("userspace", size)
    return [
        note("new connections", short.ours, "connections/s"),
        Measurement("userspace", "new connections", size, DIRECT, short.direct, "connections/s"),
        note("new connections, share of HAProxy's", short.ratio, "×"),
    ]


ROWS: Mapping[str, Measure] = {
    "first round": _cold_start,
    "facts": _facts,
    "repair": _repair,
    "restart": _restart,
    "changes": _changes,
    "large Service": _large_service,
    "iptables-nft": _iptables_nft,
    "userspace": _userspace,
}


def measure_row(row: EngineRow, limit_seconds: float) -> list[Measurement]:
    """Measure in a process of its own. Raises ProxyError if that fails or takes too long."""
    numbers = (row.size.services, row.size.endpoints, row.samples)
    argv = [sys.executable, "-m", _MODULE, row.name, *map(str, numbers)]
    try:
        done = subprocess.run(argv, capture_output=True, check=False, timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        raise ProxyError(f"stopped after {limit_seconds:g} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ProxyError((lines or [f"it ended with code {done.returncode}"])[-1])
    return msgspec.json.decode(done.stdout, type=list[Measurement])


def main(argv: Sequence[str]) -> int:
    name, services, endpoints, samples = argv
    size = Size(int(services), int(endpoints))
    found = asyncio.run(ROWS[name](size, int(samples)))
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
