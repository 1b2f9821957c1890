"""Which scheduler of the kernel serves which algorithm. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from kubeproxy.facts.policy import Algorithm
from kubeproxy.kernel.ipvs.wire import IP_VS_SVC_F_SCHED_FALLBACK, IP_VS_SVC_F_SCHED_MH_PORT


class Scheduling(Struct, frozen=True, gc=False):
    """A scheduler and its flags."""

    scheduler: str
    flags: int = 0


# sh and mh keep a real server of weight 0 in their tables, to put everything back where it was
# when the weight returns. Without the fallback, what its hash leads there is refused meanwhile:
# also while a removed endpoint drains.
_SCHEDULERS: Mapping[Algorithm, Scheduling] = {
    Algorithm.ROUND_ROBIN: Scheduling("rr"),
    Algorithm.SOURCE_HASH: Scheduling("sh", IP_VS_SVC_F_SCHED_FALLBACK),
    Algorithm.CONSISTENT_HASH: Scheduling("mh", IP_VS_SVC_F_SCHED_FALLBACK),
    Algorithm.LEAST_CONNECTIONS: Scheduling("lc"),
}
_WEIGHTED = {"rr": "wrr", "lc": "wlc"}
"""Schedulers that do not look at weights, and those that do the same with weights."""

ALGORITHMS = frozenset(_SCHEDULERS)
"""What a Service may ask for. The kernel has no scheduler that draws at random."""


def scheduling(algorithm: Algorithm | None, default: str, *, is_weighted: bool) -> Scheduling:
    """How a virtual server is balanced. `default` is the configured scheduler."""
    found = _SCHEDULERS[algorithm] if algorithm else _default(default)
    if is_weighted and found.scheduler in _WEIGHTED:
        return Scheduling(_WEIGHTED[found.scheduler], found.flags)
    return found


def _default(scheduler: str) -> Scheduling:
    """Upstream's flags: the scheduler mh hashes the client's port as well."""
    return Scheduling(scheduler, IP_VS_SVC_F_SCHED_MH_PORT if scheduler == "mh" else 0)
