"""Snapshots of a proxy that never ran: from facts, as its answers would have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw
from tests.support.builders import NODE, node

from kpctl.snapshot.live import snapshot_of
from kpctl.snapshot.types import Snapshot
from kubeproxy.config.command import Exit, parse_command_line
from kubeproxy.config.write import config_document
from kubeproxy.facts.endpoint import SliceFacts
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.inspection.types import (
    Changed,
    Collection,
    EndpointChange,
    FamilyStatus,
    Held,
    History,
    Problem,
    Refused,
    Repair,
    Round,
    Status,
)

NOW = 1_800_000_000.0


def held(
    service: ServiceFacts | None,
    *slices: SliceFacts,
    family: Family = Family.IPV4,
    changed: Changed | None = None,
    endpoint_changes: Sequence[EndpointChange] = (),
    refused: Sequence[Refused] = (),
    failing: Mapping[str, str] | None = None,
) -> Held:
    """A Service and its slices; without the Service, what slices name."""
    return Held(
        name=service.name if service else slices[0].service,
        family=family,
        service=service,
        slices=slices,
        changed=changed,
        endpoint_changes=tuple(endpoint_changes),
        refused=tuple(refused),
        failing=failing or {},
    )


def snapshot(
    *services: Held,
    mode: str = "nftables",
    on: NodeFacts | None = None,
    problems: Sequence[Problem] = (),
) -> Snapshot:
    return snapshot_of(
        "a test", status(mode=mode, on=on, problems=problems), History((), ()), services
    )


def status(
    *,
    mode: str = "nftables",
    on: NodeFacts | None = None,
    families: Sequence[Family] = tuple(Family),
    collections: Sequence[Collection] = (Collection("services", "watching", 60.0),),
    refused: Sequence[Refused] = (),
    is_healthy: bool = True,
    problems: Sequence[Problem] = (),
    last_sync_at: float | None = NOW - 2,
) -> Status:
    settings = parse_command_line([f"--proxy-mode={mode}"])
    assert not isinstance(settings, Exit)
    found = tuple(
        FamilyStatus(
            family=family,
            node=on if on is not None and on.family is family else node(family),
            services=1,
            service_ports=1,
            endpoints=1,
            items=7,
            queued=0,
            is_healthy=is_healthy,
            last_sync_at=last_sync_at,
            refused=tuple(refused),
        )
        for family in families
    )
    return Status(
        version="0.1.0",
        kubernetes="v1.36.4",
        process=42,
        started_at=NOW - 3600,
        now=NOW,
        node=NODE,
        mode=mode,
        source="https://192.0.2.1:6443",
        config=Raw(msgspec.json.encode(config_document(settings.config))),
        extensions={},
        families=found,
        collections=tuple(collections),
        problems=tuple(problems),
        repairs=1,
        rounds=3,
        last_round=round_(),
    )


def round_(*, error: str = "", latency: float = 0.0, seconds: float = 0.002) -> Round:
    return Round(
        at=NOW - 2,
        family=Family.IPV4,
        is_full=False,
        seconds=seconds,
        services=1,
        changes=2,
        batches=1,
        bytes_sent=100,
        refused=0,
        error=error,
        latencies=1 if latency else 0,
        worst_latency_seconds=latency,
    )


def repair(cause: str = "nft (process 7) changed the table") -> Repair:
    return Repair(NOW - 60, Family.IPV4, cause, 3)
