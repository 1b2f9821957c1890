"""Log lines about addresses that this node refuses to serve or to use as targets.

One line per Service when its refusals begin or change, at most a few per minute over all Services:
a user who makes objects that are refused must not be able to fill a disk.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeproxy.facts.ids import ServiceName
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import LogLimit
from kubeproxy.plan.findings import refused_addresses
from kubeproxy.plan.types import ServicePlan
from kubeproxy.sync.pipeline import Pipeline

logger = get_logger(__name__)

MOST_PER_MINUTE = 60


class RefusedTargets:
    """Compares what was refused of a Service with what was refused before."""

    def __init__(self, limit: LogLimit | None = None) -> None:
        self._limit = limit or LogLimit(burst=MOST_PER_MINUTE)

    def replanned(
        self, pipeline: Pipeline, replaced: Mapping[ServiceName, tuple[ServicePlan, ...]]
    ) -> None:
        for name, before in replaced.items():
            found = refused_addresses(pipeline.plans_of(name))
            if found and found != refused_addresses(before) and self._limit.is_due():
                logger.error(found, "Addresses of a Service are refused", service=name)
