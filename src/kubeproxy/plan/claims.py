"""Which service ports claim one address and port, and which of them wins. No I/O.

The API server lets no two Services have one cluster IP or node port, but any number of them may
name the same external IP or load balancer address. Then the smallest service port wins, in every
mode, and the next one is served when it leaves. The cost of a change is the size of its Service.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.plan.types import ServicePlan


class Place(NamedTuple):
    """Where traffic arrives; an empty address is a node port."""

    address: str
    port: int
    protocol: Protocol

    def __str__(self) -> str:
        where = join_host_port(self.address, self.port) if self.address else f"port {self.port}"
        return f"{where}/{self.protocol.value}"


class Conflict(NamedTuple):
    """A place that two Services claim. The loser gets nothing of what arrives there."""

    place: Place
    winner: ServicePortId
    loser: ServicePortId


class Claims:
    """The claims of one family."""

    def __init__(self) -> None:
        self._owners: dict[Place, list[ServicePortId]] = {}

    def replace(
        self, before: Sequence[ServicePlan], after: Sequence[ServicePlan]
    ) -> list[Conflict]:
        """Take over the plans of one Service. Return the conflicts that begin with it."""
        old, new = dict.fromkeys(_claims(before)), dict.fromkeys(_claims(after))
        for place, owner in old:
            if (place, owner) not in new:
                self._release(place, owner)
        added = (claim for claim in new if claim not in old)
        return [found for place, owner in added if (found := self._claim(place, owner))]

    def _release(self, place: Place, owner: ServicePortId) -> None:
        owners = self._owners[place]
        owners.remove(owner)
        if not owners:
            del self._owners[place]

    def _claim(self, place: Place, owner: ServicePortId) -> Conflict | None:
        owners = self._owners.setdefault(place, [])
        insort(owners, owner)
        loser = owner if owner != owners[0] else owners[1] if len(owners) > 1 else None
        if loser is None or loser.service == owners[0].service:
            return None
        return Conflict(place, owners[0], loser)


def _claims(plans: Iterable[ServicePlan]) -> Iterator[tuple[Place, ServicePortId]]:
    for plan in plans:
        for frontend in plan.frontends:
            yield Place(frontend.address, frontend.port, plan.id.protocol), plan.id
