"""The sink of this mode's sockets: listeners that the carrier serves, and claimed ports.

Promises: sockets are bound here and stay open here, so a carrier that exits takes its connections
along but no listener, and its successor goes on with the same ports; a batch of listeners that
cannot be bound leaves nothing behind. Ours is recognised by being held: sockets do not outlive the
process, so a restarted proxy finds none.

State kept beside the ledger, because the kernel offers no other way to read it back:

    the open sockets        of listeners and claims, with the carrier's number of each listener;
                            `read` is answered from them
    learned                 the ports and claims that rendering needs, always as of now
    refused                 claims on ports that other programs hold, to be retried. The ledger
                            takes them for held until the next `read`
    unsettled, closed       what has changed in `learned` since the engine last asked
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from kubeproxy.errors import Drifted, Rejected
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.modes.base import Batch, Carried, CarriedCount, CarriedFlow, Change, Owner
from kubeproxy.modes.userspace.carrier.messages import (
    Balance,
    CloseListener,
    LogMessage,
    OpenListener,
    Route,
    UpdateListener,
)
from kubeproxy.modes.userspace.compile.batches import SocketPayload, compile_sockets
from kubeproxy.modes.userspace.items import (
    Claim,
    Learned,
    Listener,
    SocketItem,
    SocketValue,
    Uncarried,
)
from kubeproxy.modes.userspace.sinks.binding import Binder, port_of
from kubeproxy.modes.userspace.sinks.supervisor import LogWriter, Request, Supervisor


class _OpenSocket(Struct, frozen=True):
    """The socket of a listener, its number for the carrier, and how it distributes."""

    number: int
    handle: socket.socket
    balance: Balance


class SocketSink:
    """Binds sockets, hands those of listeners to the carrier, and closes them."""

    name = "sockets"
    item_types: tuple[type, ...] = (Listener, Claim, Uncarried)
    is_transactional = True

    def __init__(self, binder: Binder, idle_seconds: float, log: LogWriter) -> None:
        self.supervisor = Supervisor(idle_seconds, log)
        self._log = log
        self._binder = binder
        self._listeners: dict[Listener, _OpenSocket] = {}
        self._claim_sockets: dict[Claim, socket.socket] = {}
        self._uncarried: dict[Uncarried, str] = {}
        self._refused: dict[Claim, ServicePortId] = {}
        self._ports: dict[Listener, int] = {}
        self._claims: dict[Claim, ServicePortId] = {}
        self._unsettled: set[Owner] = set()
        self._last_number = 0
        # Both the engine and the monitor send commands to the carrier: one at a time.
        self._carrier_lock = asyncio.Lock()
        self.learned = Learned(self._ports, self._claims)
        """Always as of now."""

    def take_unsettled(self) -> Collection[Owner]:
        """Return the owners about whom something was learned since the last call."""
        taken, self._unsettled = self._unsettled, set()
        return taken

    async def read(self) -> Mapping[SocketItem, SocketValue]:
        found: dict[SocketItem, SocketValue] = {}
        found |= {item: held.balance for item, held in self._listeners.items()}
        found |= {claim: owner for claim, owner in self._claims.items()}  # noqa: C416 - wider types
        found |= {item: reason for item, reason in self._uncarried.items()}  # noqa: C416 - as above
        return found

    def compile(
        self, changes: Sequence[Change[SocketItem, SocketValue]]
    ) -> Iterator[Batch[SocketPayload]]:
        return compile_sockets(changes)

    async def apply(self, batch: Batch[SocketPayload]) -> None:
        payload = batch.payload
        for claim, owner in payload.claims.items():
            self._apply_claim(claim, owner)
        for item, reason in payload.uncarried.items():
            self._apply_uncarried(item, reason)
        if payload.listeners:
            async with self._carrier_lock:
                await self._apply_listeners(payload.listeners)

    # --- claims, and what cannot be carried ---

    def _apply_claim(self, claim: Claim, owner: ServicePortId | None) -> None:
        """Hold or release a port.

        A port that another program holds is no failure: it is logged and retried, and only the
        portal that needs it stays closed meanwhile.
        """
        self._refused.pop(claim, None)
        if owner is not None:
            self._hold(claim, owner)
        elif claim in self._claim_sockets:
            self._unsettled.add(self._claims.pop(claim))
            self._claim_sockets.pop(claim).close()

    def _hold(self, claim: Claim, owner: ServicePortId) -> None:
        if claim not in self._claim_sockets:
            try:
                self._claim_sockets[claim] = self._binder.claim(claim)
            except Rejected as error:
                self._refused[claim] = owner
                self._log(LogMessage(str(error), owner.label))
                return
        self._unsettled |= {owner, self._claims.get(claim, owner)}
        self._claims[claim] = owner

    def retry_refused(self) -> bool:
        """Retry the claims that were refused. Return whether one is held now."""
        refused, self._refused = self._refused, {}
        for claim, owner in refused.items():
            self._hold(claim, owner)
        return len(self._refused) < len(refused)

    def _apply_uncarried(self, item: Uncarried, reason: str | None) -> None:
        self._uncarried.pop(item, None)
        if reason is not None:
            self._uncarried[item] = reason
            self._log(LogMessage(reason, str(item.owner)))

    # --- listeners ---

    async def _apply_listeners(self, wanted: Mapping[Listener, Balance | None]) -> None:
        bound = self._bind_all(
            [i for i, new in wanted.items() if new is not None and i not in self._listeners]
        )
        closing: list[socket.socket] = []
        requests = list(self._requests(wanted, bound, closing))
        try:
            await self.supervisor.execute(requests)
        except Drifted:
            # A new carrier is sent everything that is open now, which includes this batch.
            await self._restart_carrier()
        finally:
            for handle in closing:
                self._binder.close(handle)

    def _bind_all(self, items: Sequence[Listener]) -> dict[Listener, socket.socket]:
        """Bind sockets for new listeners: all of them, or none. Raises Rejected."""
        bound: dict[Listener, socket.socket] = {}
        try:
            for item in items:
                bound[item] = self._binder.listen(item.owner)
        except BaseException:
            for handle in bound.values():
                self._binder.close(handle)
            raise
        return bound

    def _requests(
        self,
        wanted: Mapping[Listener, Balance | None],
        bound: Mapping[Listener, socket.socket],
        closing: list[socket.socket],
    ) -> Iterator[Request]:
        """The requests to the carrier; our own state is changed along with them."""
        for item, balance in wanted.items():
            held = self._listeners.get(item)
            if balance is None:
                if held is not None:
                    del self._listeners[item]
                    del self._ports[item]
                    closing.append(held.handle)
                    yield Request(CloseListener(held.number))
            elif held is None:
                yield self._open(item, bound[item], balance)
            else:
                self._listeners[item] = _OpenSocket(held.number, held.handle, balance)
                yield Request(UpdateListener(held.number, balance))

    def _open(self, item: Listener, handle: socket.socket, balance: Balance) -> Request:
        self._last_number += 1
        self._listeners[item] = _OpenSocket(self._last_number, handle, balance)
        self._ports[item] = port_of(handle)
        self._unsettled.add(item.owner)
        return _open_request(item, self._listeners[item])

    # --- the carrier ---

    async def start_carrier(self) -> None:
        """Start a carrier, and leave waiting for it to whatever needs it. Raises KernelError."""
        async with self._carrier_lock:
            await self.supervisor.start()

    async def ensure_carrier(self) -> None:
        """Start a carrier that serves everything that is open, unless one runs.

        Raises KernelError.
        """
        async with self._carrier_lock:
            if not self.supervisor.is_running:
                await self._restart_carrier()

    async def carried(self, most_flows: int) -> Carried:
        """What the carrier carries at present. Raises KernelError."""
        async with self._carrier_lock:
            reply = await self.supervisor.inspect(most_flows)
        return Carried(
            tuple(
                CarriedCount(_owner_of(route), join_host_port(*route.target), now, total)
                for route, now, total in reply.counts
            ),
            tuple(
                CarriedFlow(_owner_of(route), client, join_host_port(*route.target))
                for route, client in reply.flows
            ),
            reply.is_cut,
        )

    async def _restart_carrier(self) -> None:
        await self.supervisor.start()
        await self.supervisor.execute(
            [_open_request(item, held) for item, held in self._listeners.items()]
        )

    def bound_ports(self) -> frozenset[int]:
        """The proxy ports of all listeners."""
        return frozenset(self._ports.values())

    def release_claims(self) -> None:
        """Give claimed ports up, so that another proxy can claim them."""
        for handle in self._claim_sockets.values():
            handle.close()
        self._claim_sockets.clear()
        self._claims.clear()

    async def close(self) -> None:
        """Stop the carrier and close every socket."""
        await self.supervisor.stop()
        for held in self._listeners.values():
            self._binder.close(held.handle)
        self.release_claims()
        for state in (self._listeners, self._ports, self._uncarried):
            state.clear()


def _owner_of(route: Route) -> ServicePortId:
    """The service port that a carrier's label stands for."""
    namespace, _, rest = route.service.partition("/")
    name, _, port = rest.partition(":")
    protocol = Protocol.UDP if route.is_udp else Protocol.TCP
    return ServicePortId(namespace, name, port, protocol)


def _open_request(item: Listener, held: _OpenSocket) -> Request:
    is_udp = item.owner.protocol is Protocol.UDP
    command = OpenListener(held.number, item.owner.label, is_udp, held.balance)
    return Request(command, held.handle)
