"""Bundles made by hand: what a proxy would have written, with as many Services as a test wants."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace
from tests.support import snapshots
from tests.support.builders import endpoint, endpoint_slice, service
from tests.support.snapshots import NOW

from kpctl.snapshot.bundle import Head
from kubeproxy.facts.ids import Family
from kubeproxy.inspection.types import Changed, Held, History, Repair, Round, Status


def status(**fields: object) -> Status:
    """The status of a proxy in one family, which has done some rounds."""
    return replace(snapshots.status(families=[Family.IPV4]), **fields)


def history() -> History:
    """Two rounds and a repair."""
    rounds = tuple(
        Round(
            at=NOW - seconds,
            family=Family.IPV4,
            is_full=is_full,
            seconds=0.002 * seconds,
            services=1,
            changes=3,
            batches=1,
            bytes_sent=900,
            refused=0,
            error="",
            latencies=1,
            worst_latency_seconds=0.02,
        )
        for seconds, is_full in ((600, True), (5, False))
    )
    repair = Repair(NOW - 60, Family.IPV4, "nft (process 77) changed the table", 1, ("+ a rule",))
    return History(rounds, (repair,))


def held(name: str, address: str = "10.96.0.10", *endpoints: str) -> Held:
    """One Service with ready endpoints, that changed a moment ago."""
    facts = service(name, cluster_ip=address)
    found = [endpoint(each) for each in endpoints]
    slices = (endpoint_slice(name, found, slice_name=f"{facts.name.name}-1"),)
    return Held(
        facts.name, Family.IPV4, facts, slices if endpoints else (), Changed(NOW - 90, "created")
    )


def many_held(number: int) -> Iterator[Held]:
    """Services with three endpoints each."""
    for index in range(number):
        ending = f"{index // 250}.{index % 250 + 1}"
        yield held(
            f"team-{index % 50}/service-{index}",
            f"10.96.{ending}",
            *(f"10.{200 + replica}.{ending}" for replica in range(3)),
        )


def write_by_hand(
    path: Path, services: Iterable[Held], of: Status | None = None, head: Head | None = None
) -> Path:
    """Write a bundle of these Services."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for value in (head or Head(), of or status(), history(), *services):
            file.write(msgspec.json.encode(value) + b"\n")
    return path
