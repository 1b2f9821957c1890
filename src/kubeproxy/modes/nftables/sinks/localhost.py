"""Node ports on the loopback address, an opt-in of ours: listeners as items of a second sink.

Upstream's nftables mode has no node ports on 127.0.0.1 and ::1. With `--nftables-localhost-
nodeports` we listen there in user space, for TCP and UDP and both families. The node's own clients
use all endpoints whatever the traffic policy says, as they do on every other address.

A port somebody else already has is told and tried again later; it does not fail the round,
because the node port works everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import Batch, Change, Item, Measure, Value
from kubeproxy.modes.nftables.sinks.relay import Picker, Target, TcpRelay, UdpRelay
from kubeproxy.plan.types import FrontendKind, ServicePlan

logger = get_logger(__name__)

RETRY_SECONDS = 10.0
_LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
_RELAYED = (Protocol.TCP, Protocol.UDP)


class ListenerItem(Struct, frozen=True, gc=False):
    """A node port on the loopback address."""

    protocol: Protocol
    port: int


def listener_items(plan: ServicePlan) -> dict[Item, Value]:
    """The listeners one service port wants. Pure."""
    if plan.id.protocol not in _RELAYED:
        return {}
    items: dict[Item, Value] = {}
    for frontend in plan.frontends_of(FrontendKind.NODE_PORT):
        if frontend.accepts_anybody:
            pool = plan.cluster if frontend.has_short_circuit else plan.pool(frontend.pool)
            endpoints = tuple((e.address, e.port) for e in pool.endpoints)
            target = Target(endpoints, plan.affinity_seconds)
            items[ListenerItem(plan.id.protocol, frontend.port)] = target
    return items


class LocalhostSink:
    """Opens, retargets and closes listeners."""

    name = "localhost node ports"
    item_types: tuple[type, ...] = (ListenerItem,)

    def __init__(self, family: Family) -> None:
        self._host = _LOOPBACK[family]
        self._relays: dict[ListenerItem, TcpRelay | UdpRelay] = {}
        self._targets: dict[ListenerItem, Target] = {}
        self._failed: dict[ListenerItem, Target] = {}
        self._failures = 0

    async def read(self) -> Mapping[Item, Value]:
        """What we listen on; a port that could not be had counts as wanted and pending."""
        return dict(self._targets.items())

    def compile(self, changes: Sequence[Change]) -> Iterable[Batch]:
        return [Batch((change,), None) for change in changes]

    async def apply(self, batch: Batch) -> None:
        for change in batch.changes:
            if not isinstance(change.item, ListenerItem):
                raise TypeError("not an item of this sink")
            await self._apply(change.item, change.new)

    async def _apply(self, item: ListenerItem, wanted: object) -> None:
        relay = self._relays.get(item)
        if not isinstance(wanted, Target):
            await self._close(item)
        elif relay is None:
            await self._open(item, wanted)
        else:
            self._targets[item] = wanted
            if isinstance(relay, UdpRelay):
                relay.retarget(wanted)
            else:
                relay.picker.retarget(wanted)

    async def _open(self, item: ListenerItem, target: Target) -> None:
        picker = Picker(target)
        relay = TcpRelay(picker) if item.protocol is Protocol.TCP else UdpRelay(picker)
        try:
            await relay.open(self._host, item.port)
        except OSError as error:
            self._failures += 1
            if item not in self._failed:
                logger.error(
                    str(error), "Cannot listen for a node port on localhost", port=item.port
                )
            self._failed[item] = target
            return
        self._failed.pop(item, None)
        self._relays[item] = relay
        self._targets[item] = target

    async def _close(self, item: ListenerItem) -> None:
        self._failed.pop(item, None)
        self._targets.pop(item, None)
        relay = self._relays.pop(item, None)
        if relay is not None:
            await relay.close()

    async def retry(self) -> float | None:
        """Try again what could not be had; seconds until the next attempt."""
        for item, target in tuple(self._failed.items()):
            await self._open(item, target)
        return RETRY_SECONDS if self._failed else None

    def measures(self) -> tuple[Measure, ...]:
        """Listeners there are, and how often one could not be made since last asked."""
        prefix = "nftables_localhost_nodeport_listener"
        failures, self._failures = self._failures, 0
        return (
            Measure(f"{prefix}s", (), len(self._relays)),
            Measure(f"{prefix}_creation_failures_total", (), failures),
        )

    async def close(self) -> None:
        for item in tuple(self._relays):
            await self._close(item)
