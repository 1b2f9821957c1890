"""What is known of one proxy at one moment, wherever it comes from.

A running daemon, a bundle and manifests all end up here, so that a command is written once. The
pipelines are the daemon's own code, fed with the daemon's own facts: plans and items are what the
daemon has, because they depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.config.command import Settings
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.inspection.types import Held, History, Status
from kubeproxy.modes.base import AnyBackend, AnyFragment, OpenSocket
from kubeproxy.plan.types import ServicePlan
from kubeproxy.sync.pipeline import Pipeline

KernelState: TypeAlias = Mapping[Family, AnyFragment]
"""What the kernel holds of ours, by family: items and their values."""


class Snapshot(Struct, frozen=True):
    """One proxy.

    `origin` says where this comes from, for people. `status` and `history` are None for manifests,
    of which no daemon has a past. `is_partial` holds if only some Services were asked for.
    """

    origin: str
    node: str
    settings: Settings
    backends: Mapping[Family, AnyBackend]
    pipelines: Mapping[Family, Pipeline]
    held: Mapping[tuple[Family, ServiceName], Held]
    status: Status | None = None
    history: History | None = None
    is_partial: bool = False
    rejected: int = 0
    """Objects in manifests that cannot be used."""
    kernel: KernelState | None = None
    """What the kernel held at that moment; None if that was not read."""
    open_sockets: Mapping[Family, frozenset[OpenSocket]] | None = None
    """Sockets of ours on which something listened at that moment; None if that was not read."""

    @property
    def mode(self) -> str:
        return self.settings.config.mode

    def plans(self) -> Iterator[tuple[Family, ServicePlan]]:
        """Every plan, in the order of family and service port."""
        for family, pipeline in self.pipelines.items():
            for plan in sorted(pipeline.plans(), key=lambda found: found.id):
                yield family, plan

    def names(self) -> list[ServiceName]:
        """Every Service that has an object or slices, sorted."""
        return sorted({name for _, name in self.held})
