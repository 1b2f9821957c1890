"""Time and memory from JSON to plans, without a mode: `python -m kpctl.bench.spine`.

Objects arrive as the API server writes them and go the daemon's own way: decode, store, plan. The
figures are of this process, with everything imported that the daemon imports.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from kpctl.bench.bulk import service_addresses, service_of, slice_of
from kpctl.bench.facts import NODE, node
from kpctl.look.quiet import IgnoreEvents, IgnoreRounds, PlanOnlyBackend
from kubeproxy.api.source import Kind, Object, Synced, Upsert
from kubeproxy.facts.ids import Family
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.intake import Intake

EVENTS = 1000


class Figures(msgspec.Struct, frozen=True):
    """One measurement."""

    services: int
    endpoints: int
    decode_seconds: float
    intake_seconds: float
    plan_seconds: float
    event_seconds: float
    imported_megabytes: float
    filled_megabytes: float

    def __str__(self) -> str:
        return (
            f"{self.services} services x {self.endpoints} endpoints:"
            f" decode {self.decode_seconds:.2f} s, facts {self.intake_seconds:.2f} s,"
            f" plan {self.plan_seconds:.2f} s, one event {self.event_seconds * 1e6:.0f} us,"
            f" resident {self.filled_megabytes:.0f} MB"
            f" (of which program {self.imported_megabytes:.0f} MB)"
        )


def wire(services: int, endpoints: int) -> Iterator[tuple[Kind, bytes]]:
    """The cluster's objects as JSON."""
    encoder = msgspec.json.Encoder()
    for number in range(services):
        yield Kind.SERVICE, encoder.encode(service_of(number))
        found = slice_of(number, service_addresses(number, endpoints))
        yield Kind.ENDPOINT_SLICE, encoder.encode(found)


class Stopwatch:
    """Sums processor time, which other processes do not influence."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.process_time()

    def __exit__(self, *exc: object) -> None:
        self.seconds += time.process_time() - self._started


def measure(services: int, endpoints: int) -> Figures:
    """Fill one family with a cluster, then change one Service after another."""
    for module in ("kubeproxy.run.app", "kubeproxy.api.api_server"):
        importlib.import_module(module)
    imported = resident_megabytes()
    engine, intake = _proxy()
    decode, taking, planning = Stopwatch(), Stopwatch(), Stopwatch()
    for event in _events(wire(services, endpoints), decode):
        with taking:
            intake.send(event)
    for kind in Kind:
        intake.send(Synced(kind))
    with planning:
        engine.pipeline.recompute()
    gc.collect()
    filled = resident_megabytes()
    return Figures(
        services=services,
        endpoints=endpoints,
        decode_seconds=decode.seconds,
        intake_seconds=taking.seconds,
        plan_seconds=planning.seconds,
        event_seconds=_event_seconds(engine, intake, services, endpoints),
        imported_megabytes=imported,
        filled_megabytes=filled,
    )


def _proxy() -> tuple[Engine, Intake]:
    clock, events = SystemClock(), IgnoreEvents()
    engine = Engine(
        PlanOnlyBackend(Family.IPV4, None),
        node(),
        clock=clock,
        listener=IgnoreRounds(),
    )
    intake = Intake(
        {Family.IPV4: engine},
        NODE,
        counters=events,
        node_listener=events,
        started_at=clock.time(),
    )
    return engine, intake


def _events(items: Iterable[tuple[Kind, bytes]], decode: Stopwatch) -> Iterator[Upsert]:
    decoders = {kind: msgspec.json.Decoder(kind.object_type) for kind in Kind}
    for kind, text in items:
        with decode:
            found: Object = decoders[kind].decode(text)
        yield Upsert(kind, found)


def _event_seconds(engine: Engine, intake: Intake, services: int, endpoints: int) -> float:
    """Seconds for one event: an endpoint leaves, in one Service after another."""
    numbers = range(min(EVENTS, services))
    items = [(n, slice_of(n, service_addresses(n, endpoints)[1:])) for n in numbers]
    watch = Stopwatch()
    for _, found in items:
        with watch:
            intake.send(Upsert(Kind.ENDPOINT_SLICE, found))
            engine.pipeline.recompute()
    return watch.seconds / len(items)


def resident_megabytes() -> float:
    """The resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    """`python -m kpctl.bench.spine [SERVICES [ENDPOINTS]]`."""
    given = [int(text) for text in sys.argv[1:3]]
    services, endpoints = [*given, *(10_000, 10)[len(given) :]]
    sys.stdout.write(f"{measure(services, endpoints)}\n")


if __name__ == "__main__":
    main()
