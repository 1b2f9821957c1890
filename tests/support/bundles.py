"""Bundles made by hand: what a proxy would have written, with as many Services as a test wants."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Raw
from tests.support.builders import NODE, endpoint, endpoint_slice, node, service

from kpctl.snapshot.bundle import Head
from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.config.write import config_document
from kubeproxy.facts.ids import Family
from kubeproxy.inspection.types import Changed, FamilyStatus, Held, History, Repair, Round, Status

NOW = 1_790_000_000.0


def status(mode: str = "nftables", **fields: object) -> Status:
    """The status of a proxy in one family, which has done some rounds."""
    settings = parse_command_line([f"--proxy-mode={mode}"])
    assert isinstance(settings, Settings)
    family = FamilyStatus(
        family=Family.IPV4,
        node=node(),
        services=1,
        service_ports=1,
        endpoints=1,
        items=1,
        queued=0,
        is_healthy=True,
        last_sync_at=NOW - 5,
    )
    values: dict[str, object] = {
        "version": "1.0.0",
        "kubernetes": "v1.36.0",
        "process": 42,
        "started_at": NOW - 3600,
        "now": NOW,
        "node": NODE,
        "mode": mode,
        "source": "manifests in /etc/kubeproxy",
        "config": Raw(msgspec.json.encode(config_document(settings.config))),
        "extensions": {},
        "families": (family,),
        "collections": (),
        "problems": (),
        "repairs": 1,
        "rounds": 2,
    }
    return Status(**{**values, **fields})  # type: ignore[arg-type]


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


def write_by_hand(path: Path, services: Iterable[Held], of: Status | None = None) -> Path:
    """Write a bundle of these Services."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for value in (Head(), of or status(), history(), *services):
            file.write(msgspec.json.encode(value) + b"\n")
    return path
