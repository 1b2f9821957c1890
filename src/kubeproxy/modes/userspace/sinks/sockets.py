"""The sink of this mode's sockets: listeners that the carrier serves, and claimed ports.

Promises: sockets are bound here and stay open here, so a carrier that dies takes its connections
along but no listener, and its successor goes on with the same ports; a batch that cannot be bound
leaves nothing behind. Ours is recognisable by being ours: sockets do not outlive the process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from kubeproxy.errors import Drifted, Rejected
from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.modes.base import Batch, Change, Item, Owner, Value
from kubeproxy.modes.userspace.carrier.messages import Balance, Close, Open, Say, Update
from kubeproxy.modes.userspace.items import Claim, Learned, Listener
from kubeproxy.modes.userspace.sinks.binding import Binder, port_of
from kubeproxy.modes.userspace.sinks.supervisor import Order, Supervisor

LISTENERS_PER_BATCH = 128


class _Held(Struct, frozen=True):
    """An open listener: its number for the carrier, its socket, and what it does."""

    number: int
    handle: socket.socket
    balance: Balance


class SocketSink:
    """Binds, hands over to the carrier, and closes."""

    name = "sockets"
    item_types: tuple[type, ...] = (Listener, Claim)

    def __init__(self, binder: Binder, idle_seconds: float, hear: Callable[[Say], None]) -> None:
        self.supervisor = Supervisor(idle_seconds, hear)
        self.refused: dict[Claim, ServicePortId] = {}
        """Claims wanted, on ports that somebody else has."""
        self._hear = hear
        self._binder = binder
        self._listeners: dict[Listener, _Held] = {}
        self._claim_sockets: dict[Claim, socket.socket] = {}
        self._ports: dict[Listener, int] = {}
        self._claims: dict[Claim, ServicePortId] = {}
        self._unsettled: set[Owner] = set()
        self._closed: dict[Listener, int] = {}
        self._numbers = 0
        # One conversation with the carrier at a time: the engine's, or that of reviving it.
        self._turn = asyncio.Lock()
        self.learned = Learned(self._ports, self._claims)
        """Always as of now."""

    def take_unsettled(self) -> Collection[Owner]:
        """Owners about whom something was learned since the last call."""
        taken, self._unsettled = self._unsettled, set()
        return taken

    def take_closed(self) -> Mapping[Listener, int]:
        """Listeners closed since the last call, and the ports they had."""
        taken, self._closed = self._closed, {}
        return taken

    async def read(self) -> Mapping[Item, Value]:
        found: dict[Item, Value] = {item: held.balance for item, held in self._listeners.items()}
        found |= {claim: owner for claim, owner in self._claims.items()}  # noqa: C416 - wider types
        return found

    def compile(self, changes: Sequence[Change]) -> Iterable[Batch]:
        """Listeners in bounded batches; claims one by one, so that a port in use by another
        program stops nothing else."""
        listeners = [change for change in changes if isinstance(change.item, Listener)]
        for start in range(0, len(listeners), LISTENERS_PER_BATCH):
            yield Batch(tuple(listeners[start : start + LISTENERS_PER_BATCH]), payload=None)
        for change in changes:
            if isinstance(change.item, Claim):
                yield Batch((change,), payload=None)

    async def apply(self, batch: Batch) -> None:
        for change in batch.changes:
            if isinstance(change.item, Claim):
                self._apply_claim(change.item, change.new)
        listeners = [
            (change.item, change.new if isinstance(change.new, Balance) else None)
            for change in batch.changes
            if isinstance(change.item, Listener)
        ]
        if listeners:
            async with self._turn:
                await self._apply_listeners(listeners)

    # --- claims ---

    def _apply_claim(self, claim: Claim, owner: Value | None) -> None:
        """A port that another program has is no failure of ours: it is told and tried again, and
        only the portal that needs it stays closed meanwhile."""
        self.refused.pop(claim, None)
        if isinstance(owner, ServicePortId):
            self._hold(claim, owner)
        elif claim in self._claim_sockets:
            self._unsettled.add(self._claims.pop(claim))
            self._claim_sockets.pop(claim).close()

    def _hold(self, claim: Claim, owner: ServicePortId) -> None:
        if claim not in self._claim_sockets:
            try:
                self._claim_sockets[claim] = self._binder.claim(claim)
            except Rejected as error:
                self.refused[claim] = owner
                self._hear(Say(str(error), owner.label))
                return
        self._unsettled |= {owner, self._claims.get(claim, owner)}
        self._claims[claim] = owner

    def retry_refused(self) -> bool:
        """Try again to claim what was refused; True if something was claimed."""
        refused, self.refused = self.refused, {}
        for claim, owner in refused.items():
            self._hold(claim, owner)
        return len(self.refused) < len(refused)

    # --- listeners ---

    async def _apply_listeners(self, wanted: Sequence[tuple[Listener, Balance | None]]) -> None:
        bound = self._bind_all([i for i, value in wanted if value and i not in self._listeners])
        closing: list[socket.socket] = []
        orders = list(self._orders(wanted, bound, closing))
        try:
            await self.supervisor.order(orders)
        except Drifted:
            # A new carrier is told everything that is open now, this batch included.
            await self._restart()
        finally:
            for handle in closing:
                self._binder.close(handle)

    def _bind_all(self, items: Sequence[Listener]) -> dict[Listener, socket.socket]:
        """Sockets for new listeners: all of them, or none."""
        bound: dict[Listener, socket.socket] = {}
        try:
            for item in items:
                bound[item] = self._binder.listen(item.owner)
        except BaseException:
            for handle in bound.values():
                self._binder.close(handle)
            raise
        return bound

    def _orders(
        self,
        wanted: Sequence[tuple[Listener, Balance | None]],
        bound: Mapping[Listener, socket.socket],
        closing: list[socket.socket],
    ) -> Iterator[Order]:
        """What to tell the carrier; our own books are changed along with it."""
        for item, balance in wanted:
            held = self._listeners.get(item)
            if balance is None:
                if held is not None:
                    del self._listeners[item]
                    self._closed[item] = self._ports.pop(item)
                    closing.append(held.handle)
                    yield Order(Close(held.number))
            elif held is None:
                yield self._open(item, bound[item], balance)
            else:
                self._listeners[item] = _Held(held.number, held.handle, balance)
                yield Order(Update(held.number, balance))

    def _open(self, item: Listener, handle: socket.socket, balance: Balance) -> Order:
        self._numbers += 1
        self._listeners[item] = _Held(self._numbers, handle, balance)
        self._ports[item] = port_of(handle)
        self._unsettled.add(item.owner)
        return _open_order(item, self._listeners[item])

    async def revive(self) -> None:
        """See to it that a carrier runs and serves everything that is open. Raises KernelError."""
        async with self._turn:
            if not self.supervisor.is_running:
                await self._restart()

    async def _restart(self) -> None:
        await self.supervisor.start()
        await self.supervisor.order(
            [_open_order(item, held) for item, held in self._listeners.items()]
        )

    async def close(self) -> None:
        """End the carrier and close every socket."""
        await self.supervisor.stop()
        for held in self._listeners.values():
            self._binder.close(held.handle)
        for handle in self._claim_sockets.values():
            handle.close()
        for books in (self._listeners, self._claim_sockets, self._ports, self._claims):
            books.clear()


def _open_order(item: Listener, held: _Held) -> Order:
    is_udp = item.owner.protocol is Protocol.UDP
    return Order(Open(held.number, item.owner.label, is_udp, held.balance), held.handle)
