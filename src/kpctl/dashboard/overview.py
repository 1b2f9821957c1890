"""The proxy as a whole, its rounds and its repairs, as plain data for the dashboard. Pure."""

from __future__ import annotations

from kpctl.snapshot.types import Snapshot
from kubeproxy.inspection.types import FamilyStatus, History, Status

Document = dict[str, object]


def overview_document(snapshot: Snapshot) -> Document:
    """Return what the overview shows. Of manifests no daemon has a past."""
    return {
        "origin": snapshot.origin,
        "mode": snapshot.mode,
        "node": snapshot.node,
        "rejected": snapshot.rejected,
        **(_planned(snapshot) if snapshot.status is None else _running(snapshot.status)),
    }


def _planned(snapshot: Snapshot) -> Document:
    return {
        "families": [
            {
                "family": family.value,
                "services": pipeline.service_total,
                "servicePorts": pipeline.service_port_total,
                "endpoints": pipeline.endpoint_total,
                "items": len(pipeline.ledger),
                "nodeIP": pipeline.node.ip,
            }
            for family, pipeline in snapshot.pipelines.items()
        ]
    }


def _running(status: Status) -> Document:
    return {
        "version": status.version,
        "kubernetes": status.kubernetes,
        "process": status.process,
        "startedAt": status.started_at,
        "now": status.now,
        "source": status.source,
        "rounds": status.rounds,
        "repairs": status.repairs,
        "families": [_family(each) for each in status.families],
        "collections": [
            {"name": c.name, "state": c.state, "seconds": c.seconds, "problem": c.problem}
            for c in status.collections
        ],
        "problems": [
            {"at": p.at, "kind": p.kind, "name": p.name, "reason": p.reason}
            for p in status.problems
        ],
    }


def _family(status: FamilyStatus) -> Document:
    return {
        "family": status.family.value,
        "services": status.services,
        "servicePorts": status.service_ports,
        "endpoints": status.endpoints,
        "items": status.items,
        "nodeIP": status.node.ip,
        "queued": status.queued,
        "healthy": status.is_healthy,
        "lastSyncAt": status.last_sync_at,
        "refused": [{"what": r.what, "reason": r.reason} for r in status.refused],
    }


def history_document(history: History) -> Document:
    """Return rounds and repairs, the oldest first."""
    return {
        "rounds": [
            {
                "at": r.at,
                "family": r.family.value,
                "full": r.is_full,
                "seconds": r.seconds,
                "services": r.services,
                "changes": r.changes,
                "bytes": r.bytes_sent,
                "error": r.error,
                "latencies": r.latencies,
                "latency": r.worst_latency_seconds,
            }
            for r in history.rounds
        ],
        "repairs": [
            {
                "at": r.at,
                "family": r.family.value,
                "cause": r.cause,
                "items": r.items,
                "lines": list(r.lines),
            }
            for r in history.repairs
        ],
    }
