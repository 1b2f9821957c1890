"""Node ports on the loopback address, an opt-in of ours: listeners as items of a second sink.

Upstream's nftables mode has no node ports on 127.0.0.1 and ::1. With `--nftables-localhost-
nodeports` we listen there in user space, for TCP and UDP and both families.

A port that another process holds is logged and tried again later. It does not fail the round,
because the node port works everywhere else. So this sink remembers what the ledger does not know:
which listeners could not be opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import Batch, Change, Measure
from kubeproxy.modes.nftables.compile.listeners import (
    Action,
    Close,
    Open,
    Retarget,
    compile_listeners,
)
from kubeproxy.modes.nftables.items import ListenerItem, Target
from kubeproxy.modes.nftables.sinks.relay import Picker, TcpRelay, UdpRelay

logger = get_logger(__name__)

RETRY_SECONDS = 10.0


class LocalhostSink:
    """Opens, retargets and closes listeners."""

    name = "localhost node ports"
    item_types: tuple[type, ...] = (ListenerItem,)
    is_transactional = True

    def __init__(self, family: Family) -> None:
        self._host = family.loopback
        self._relays: dict[ListenerItem, TcpRelay | UdpRelay] = {}
        self._targets: dict[ListenerItem, Target] = {}
        self._failed: dict[ListenerItem, Target] = {}
        self._failures = 0

    async def read(self) -> Mapping[ListenerItem, Target]:
        """The open listeners. One that could not be opened is not among them."""
        return dict(self._targets)

    def compile(self, changes: Sequence[Change[ListenerItem, Target]]) -> Iterator[Batch[Action]]:
        return compile_listeners(changes, self._relays)

    async def apply(self, batch: Batch[Action]) -> None:
        match batch.payload:
            case Open(item, target):
                await self._open(item, target)
            case Retarget(item, target):
                self._targets[item] = target
                self._relays[item].retarget(target)
            case Close(item):
                await self._close(item)

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
        """Open what could not be opened before. Return the seconds until the next attempt."""
        for item, target in tuple(self._failed.items()):
            await self._open(item, target)
        return RETRY_SECONDS if self._failed else None

    def measures(self) -> tuple[Measure, ...]:
        """The number of listeners, and of failures to open one since the last call."""
        failures, self._failures = self._failures, 0
        return (
            Measure("kubeproxy_nftables_localhost_nodeport_listeners", (), len(self._relays)),
            Measure(
                "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
                (),
                failures,
            ),
        )

    async def close(self) -> None:
        for item in tuple(self._relays):
            await self._close(item)
