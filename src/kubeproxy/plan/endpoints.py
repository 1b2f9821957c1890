"""Which endpoints serve: readiness, the terminating fallback, hints and locality. Pure.

The rules are upstream's (`pkg/proxy/topology.go` documents them). Ours is that each choice carries
the reason why it was made.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.policy import Rotation
from kubeproxy.plan.types import Excluded, Pool

READY = "ready"
TERMINATING_FALLBACK = "serving while terminating: no endpoint is ready"
LOCAL_READY = "ready on this node"
LOCAL_TERMINATING_FALLBACK = "serving while terminating on this node: none here is ready"

NO_SHARE = "weight 0: takes no new connection"
FAILS = "fails its health check"

HINTS_IGNORED = "hints ignored"
HINTS_INCOMPLETE = "a ready endpoint has none"


class Choice(Struct, frozen=True, gc=False):
    """The outcome for one service port."""

    cluster: Pool = Pool()
    local: Pool = Pool()
    reachable: tuple[Endpoint, ...] = ()
    has_endpoints: bool = False
    notes: tuple[str, ...] = ()


class _Topology(Struct, frozen=True, gc=False):
    """What hints made of the ready endpoints."""

    endpoints: tuple[Endpoint, ...]
    reason: str
    notes: tuple[str, ...] = ()


def choose_endpoints(
    endpoints: tuple[Endpoint, ...],
    *,
    uses_cluster: bool,
    uses_local: bool,
    node_name: str,
    zone: str,
) -> Choice:
    """The pools for one service port, from its merged endpoints in canonical order."""
    if not endpoints:
        return Choice()
    ready = _same_if_all(endpoints, [e for e in endpoints if e.is_ready])
    topology = _apply_hints(ready, node_name, zone)
    cluster = _cluster_pool(endpoints, topology) if uses_cluster else Pool()
    if not uses_local:
        # Not a local pool of its own for each: all have the default.
        return Choice(
            cluster,
            reachable=cluster.endpoints,
            has_endpoints=bool(cluster),
            notes=topology.notes,
        )
    local = _local_pool(endpoints)
    return Choice(
        cluster=cluster,
        local=local,
        reachable=_union(endpoints, cluster, local) if uses_cluster else local.endpoints,
        has_endpoints=bool(cluster) or any(map(may_serve, endpoints)),
        notes=topology.notes if uses_cluster else (),
    )


def _same_if_all(endpoints: tuple[Endpoint, ...], chosen: list[Endpoint]) -> tuple[Endpoint, ...]:
    """Those chosen: the very tuple if that is all of them, for the sake of memory."""
    return endpoints if len(chosen) == len(endpoints) else tuple(chosen)


def may_serve(endpoint: Endpoint) -> bool:
    """Is it ready, or the fallback if none is?"""
    return endpoint.is_ready or _is_draining(endpoint)


def _is_draining(endpoint: Endpoint) -> bool:
    return endpoint.is_serving and endpoint.is_terminating


def _cluster_pool(endpoints: Sequence[Endpoint], topology: _Topology) -> Pool:
    if topology.endpoints:
        return Pool(topology.endpoints, topology.reason)
    draining = tuple(e for e in endpoints if _is_draining(e))
    return Pool(draining, TERMINATING_FALLBACK) if draining else Pool()


def _local_pool(endpoints: Sequence[Endpoint]) -> Pool:
    here = tuple(e for e in endpoints if e.is_local)
    ready = tuple(e for e in here if e.is_ready)
    if ready:
        return Pool(ready, LOCAL_READY)
    draining = tuple(e for e in here if _is_draining(e))
    return Pool(draining, LOCAL_TERMINATING_FALLBACK) if draining else Pool()


def _union(endpoints: Sequence[Endpoint], cluster: Pool, local: Pool) -> tuple[Endpoint, ...]:
    """All endpoints of either pool, in canonical order."""
    if not local:
        return cluster.endpoints
    # Pools hold the very objects of `endpoints`, so identity is enough and quick.
    chosen = {id(e) for e in cluster.endpoints} | {id(e) for e in local.endpoints}
    return tuple(e for e in endpoints if id(e) in chosen)


def _apply_hints(ready: tuple[Endpoint, ...], node_name: str, zone: str) -> _Topology:
    """Node hints first, then zone hints; one ready endpoint without a hint disables that kind."""
    notes: list[str] = []
    if [e for e in ready if e.node_hints]:
        hinted = tuple(e for e in ready if node_name in e.node_hints)
        if not all(e.node_hints for e in ready):
            notes.append(f"node {HINTS_IGNORED}: {HINTS_INCOMPLETE}")
        elif hinted:
            return _Topology(hinted, f"hinted for node {node_name}")
        else:
            notes.append(f"node {HINTS_IGNORED}: none names node {node_name}")
    if [e for e in ready if e.zone_hints]:
        hinted = tuple(e for e in ready if zone in e.zone_hints)
        if not all(e.zone_hints for e in ready):
            notes.append(f"zone {HINTS_IGNORED}: {HINTS_INCOMPLETE}")
        elif hinted:
            reason = f"hinted for zone {zone}"
            return _Topology(hinted, reason, notes=tuple(notes))
        elif not zone:
            notes.append(f"zone {HINTS_IGNORED}: the node has no zone label")
        else:
            notes.append(f"zone {HINTS_IGNORED}: none names zone {zone}")
    return _Topology(ready, READY, notes=tuple(notes))


def excluded_endpoints(
    endpoints: Sequence[Endpoint], choice: Choice, rotation: Rotation
) -> tuple[Excluded, ...]:
    """Every endpoint in no pool, with the reason."""
    if len(choice.reachable) == len(endpoints):
        return ()
    reachable = {id(e) for e in choice.reachable}
    return tuple(
        Excluded(e.text, _why_excluded(e, choice, rotation))
        for e in endpoints
        if id(e) not in reachable
    )


def _why_excluded(endpoint: Endpoint, choice: Choice, rotation: Rotation) -> str:
    if rotation.weights.get(endpoint.address) == 0 and (endpoint.is_ready or endpoint.is_serving):
        return NO_SHARE
    if endpoint.text in rotation.failing and may_serve(endpoint):
        return f"{FAILS}: {rotation.failing[endpoint.text]}"
    if endpoint.is_ready:
        if choice.cluster:
            return f"not {choice.cluster.reason}"
        return "on another node, and the policy is Local"
    if not endpoint.is_serving:
        return "neither ready nor serving"
    if not endpoint.is_terminating:
        return "not ready"
    return "terminating, and others are ready"
