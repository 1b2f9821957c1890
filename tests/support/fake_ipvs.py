"""A kernel with IPVS, ipset and a dummy link, in memory: it interprets the very messages we send.

Its errors are the kernel's: what exists cannot be created again, what does not exist cannot be
changed. It counts messages, so that tests can assert what a change costs.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from kubeproxy.errors import KernelError
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipset.table import RefusedEntry
from kubeproxy.kernel.ipset.wire import Entry, EntryChange, ListedSet, SetHead
from kubeproxy.kernel.ipvs import wire
from kubeproxy.kernel.ipvs.wire import Destination, Service
from kubeproxy.kernel.netlink.bulk import Refusal
from kubeproxy.kernel.netlink.codec import Failure
from kubeproxy.kernel.route.wire import Link, LinkAddress

Key = tuple[int, str, int]
Place = tuple[str, int]


class Patience:
    """The number of further writing calls before the process is cut off; None is any number."""

    def __init__(self) -> None:
        self.calls_left: int | None = None

    def spend(self) -> None:
        if self.calls_left is None:
            return
        if self.calls_left == 0:
            raise KernelError("the process was cut off here")
        self.calls_left -= 1


class FakeIpvs:
    """Virtual servers and their real servers; `connections` are those a test has opened."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.held: dict[Key, Service] = {}
        self.real: dict[Key, dict[Place, Destination]] = {}
        self.connections: dict[tuple[Key, Place], int] = {}
        self.refused_addresses: set[str] = set()
        self.messages = 0
        self.listings = 0

    def services(self) -> list[Service]:
        self.listings += 1
        return list(self.held.values())

    def destinations(self, protocol: int, address: str, port: int) -> list[Destination]:
        self.listings += 1
        key = (protocol, address, port)
        return [
            Destination(d.address, d.port, d.weight, d.forward, self._active(key, place))
            for place, d in self.real.get(key, {}).items()
        ]

    def _active(self, key: Key, place: Place) -> int:
        return self.connections.get((key, place), 0)

    def send(self, bodies: Sequence[bytes]) -> list[Refusal]:
        self._patience.spend()
        self.messages += len(bodies)
        errors = [(place, self._do(body)) for place, body in enumerate(bodies)]
        return [Refusal(place, Failure(error, place)) for place, error in errors if error]

    def close(self) -> None: ...

    def _do(self, body: bytes) -> int:
        command, service = body[0], wire.parse_service(body)
        key = (service.protocol, service.address, service.port)
        if command == wire.IPVS_CMD_NEW_SERVICE:
            return self._new_service(key, service)
        if key not in self.held:
            return errno.ESRCH
        if command == wire.IPVS_CMD_SET_SERVICE:
            self.held[key] = service
        elif command == wire.IPVS_CMD_DEL_SERVICE:
            del self.held[key], self.real[key]
        else:
            real = wire.parse_destination(body, family_of(service.address))
            return self._do_destination(command, key, real)
        return 0

    def _new_service(self, key: Key, service: Service) -> int:
        if key in self.held:
            return errno.EEXIST
        self.held[key] = service
        self.real[key] = {}
        return 0

    def _do_destination(self, command: int, key: Key, real: Destination) -> int:
        place = (real.address, real.port)
        is_there = place in self.real[key]
        if real.address in self.refused_addresses:
            return errno.EINVAL
        if command == wire.IPVS_CMD_NEW_DEST and is_there:
            return errno.EEXIST
        if command in (wire.IPVS_CMD_SET_DEST, wire.IPVS_CMD_DEL_DEST) and not is_there:
            return errno.ENOENT
        if command == wire.IPVS_CMD_DEL_DEST:
            del self.real[key][place]
            self.connections.pop((key, place), None)
        else:
            self.real[key][place] = real
        return 0


class FakeIpset:
    """Sets by name."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.sets: dict[str, tuple[SetHead, set[Entry]]] = {}
        self.counted: dict[str, dict[Entry, int]] = {}
        self.full: set[str] = set()
        self.entries_changed = 0
        self.listings = 0

    def is_supported(self) -> bool:
        return True

    def find(self, name: str) -> ListedSet | None:
        self.listings += 1
        held = self.sets.get(name)
        return ListedSet(held[0], frozenset(held[1])) if held else None

    def create(self, name: str, head: SetHead) -> None:
        self._patience.spend()
        self.sets.setdefault(name, (head, set()))

    def destroy(self, name: str) -> bool:
        self._patience.spend()
        return self.sets.pop(name, None) is not None

    def counters(self, name: str) -> dict[Entry, int]:
        counted = self.counted.get(name, {})
        return {entry: counted.get(entry, 0) for entry in self.sets[name][1]}

    def change(self, changes: Sequence[EntryChange]) -> list[RefusedEntry]:
        self._patience.spend()
        self.entries_changed += len(changes)
        refused = [RefusedEntry(c, "the set is full") for c in changes if c.set_name in self.full]
        for change in changes:
            if change.set_name in self.full:
                continue
            entries = self.sets[change.set_name][1]
            if change.is_add:
                entries.add(change.entry)
            else:
                entries.discard(change.entry)
        return refused

    def close(self) -> None: ...


class FakeRoute:
    """The dummy link and its addresses."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.bound: set[str] | None = None
        self.refused: set[str] = set()

    def link(self, name: str) -> Link | None:
        return None if self.bound is None else Link(7, name, "dummy")

    def addresses(self, family: Family | None = None) -> tuple[LinkAddress, ...]:
        wanted = Family if family is None else (family,)
        by_family = {address: family_of(address) for address in self.bound or ()}
        return tuple(LinkAddress(7, f, a, f.bits) for a, f in by_family.items() if f in wanted)

    def ensure_dummy(self, name: str) -> Link:
        if self.bound is None:
            self.bound = set()
        return Link(7, name, "dummy")

    def change_host_addresses(
        self, link: Link, *, add: Sequence[str] = (), delete: Sequence[str] = ()
    ) -> list[tuple[str, str]]:
        self._patience.spend()
        assert self.bound is not None
        self.bound |= set(add) - self.refused
        self.bound -= set(delete)
        return [(address, "refused") for address in add if address in self.refused]

    def close(self) -> None: ...


class FakeTables:
    """The `Tables` of the sinks of one family, all in memory."""

    def __init__(self) -> None:
        self.patience = Patience()
        self.ipvs = FakeIpvs(self.patience)
        self.ipset = FakeIpset(self.patience)
        self.route = FakeRoute(self.patience)

    def close(self) -> None: ...
