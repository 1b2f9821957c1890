"""ipset: create, list and destroy sets, change many entries at once.

Why: sink, check and clean-up speak to ipset through these few calls, without a process. Promise:
adding an entry that is there and deleting one that is not are successes, and a refused entry is
named. Leaves to others: which sets and entries.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kubeproxy.errors import KernelError, Rejected
from kubeproxy.kernel.ipset import wire
from kubeproxy.kernel.ipset.wire import Entry, EntryChange, ListedSet, SetHead
from kubeproxy.kernel.netlink import bulk, codec
from kubeproxy.kernel.netlink.bulk import Request
from kubeproxy.kernel.netlink.socket import NETLINK_NETFILTER, NetlinkSocket, kernel_error

_NO_SUBSYSTEM = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT})
"""What nfnetlink answers for a subsystem that is not there."""

ENTRIES_PER_MESSAGE = 400
"""An attribute's length has 16 bits, and the longest entry takes 100 bytes."""


class RefusedEntry(NamedTuple):
    """A change of an entry that the kernel refused, and why."""

    change: EntryChange
    reason: str


class IpsetTable(Protocol):
    """The calls that the sinks make; a fake in tests takes the same changes."""

    def is_supported(self) -> bool: ...

    def find(self, name: str) -> ListedSet | None: ...

    def create(self, name: str, head: SetHead) -> None: ...

    def destroy(self, name: str) -> bool: ...

    def change(self, changes: Sequence[EntryChange]) -> list[RefusedEntry]: ...

    def counters(self, name: str) -> dict[Entry, int]: ...

    def close(self) -> None: ...


class Ipset:
    """The sets of the network namespace in which this object was made."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(NETLINK_NETFILTER)
        self._revisions: dict[SetHead, int] = {}

    def __enter__(self) -> Ipset:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def check(self) -> None:
        """Raise a KernelError unless the kernel has ipset."""
        self._request(wire.IPSET_CMD_PROTOCOL, wire.format_protocol(), what="ask for ipset")

    def check_type(self, head: SetHead) -> None:
        """Raise a KernelError unless the kernel has this type of set."""
        self._revision(head)

    def is_supported(self) -> bool:
        """Does the kernel have ipset at all? Where it has not, there are no sets either."""
        try:
            self.check()
        except KernelError as error:
            if error.errno in _NO_SUBSYSTEM:
                return False
            raise
        return True

    def find(self, name: str) -> ListedSet | None:
        """The set of this name with its entries, or None."""
        head, bodies = self._list(name)
        if head is None:
            return None
        found = (entry for body in bodies for entry in wire.parse_entries(body, head.type))
        return ListedSet(head, frozenset(found))

    def counters(self, name: str) -> dict[Entry, int]:
        """The packets that each entry of the set has counted; empty if there is no such set."""
        head, bodies = self._list(name)
        if head is None:
            return {}
        return dict(pair for body in bodies for pair in wire.parse_counters(body, head.type))

    def _list(self, name: str) -> tuple[SetHead | None, list[bytes]]:
        kind = wire.message_type(wire.IPSET_CMD_LIST)
        try:
            replies = self._socket.dump(kind, wire.format_name(name), what=f"list set {name}")
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return None, []
            raise
        bodies = [reply.body for reply in replies]
        return next(filter(None, map(wire.parse_head, bodies)), None), bodies

    def create(self, name: str, head: SetHead) -> None:
        """Make the set unless an equal one exists. Raises Rejected if another type has the name."""
        body = wire.format_create(name, head, self._revision(head))
        what = f"create set {name}"
        try:
            self._request(wire.IPSET_CMD_CREATE, body, codec.NLM_F_CREATE, what=what)
        except KernelError as error:
            if error.errno == errno.EEXIST:
                raise Rejected(
                    f"{what}: there is one of another type; remove it (ipset destroy {name})",
                    errno=error.errno,
                ) from error
            raise

    def _revision(self, head: SetHead) -> int:
        if head not in self._revisions:
            what = f"ask for set type {head.type}"
            body = wire.format_type_request(head)
            replies = self._request(wire.IPSET_CMD_TYPE, body, what=what)
            self._revisions[head] = wire.parse_revision(replies[0].body)
        return self._revisions[head]

    def destroy(self, name: str) -> bool:
        """Remove the set. Return False if there was none."""
        body, what = wire.format_name(name), f"destroy set {name}"
        try:
            self._request(wire.IPSET_CMD_DESTROY, body, codec.NLM_F_EXCL, what=what)
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True

    def change(self, changes: Sequence[EntryChange]) -> list[RefusedEntry]:
        """Add and delete entries, many in a message. Return those that were refused."""
        groups = _groups(changes)
        refused = bulk.send_bulk(self._socket, [_request(group) for group in groups])
        if not refused:
            return []
        # A message stops at its first bad entry: send its entries again, each alone.
        singles = [change for place, _ in refused for change in groups[place]]
        failures = bulk.send_bulk(self._socket, [_request([change]) for change in singles])
        return [RefusedEntry(singles[r.place], _reason(r.failure.errno)) for r in failures]

    def _request(
        self, command: int, body: bytes, flags: int = 0, *, what: str
    ) -> list[codec.Message]:
        """Send one message. Raises KernelError, in words also for ipset's own error numbers."""
        try:
            return self._socket.request(wire.message_type(command), body, flags, what=what)
        except KernelError as error:
            words = wire.error_text(error.errno)
            if words:
                raise kernel_error(error.errno, what, words) from error
            raise


def _groups(changes: Sequence[EntryChange]) -> list[list[EntryChange]]:
    """Changes of one set and one direction together, in the order of their first."""
    open_groups: dict[tuple[str, bool], list[EntryChange]] = {}
    groups: list[list[EntryChange]] = []
    for change in changes:
        key = (change.set_name, change.is_add)
        group = open_groups.get(key)
        if group is None or len(group) >= ENTRIES_PER_MESSAGE:
            group = open_groups[key] = []
            groups.append(group)
        group.append(change)
    return groups


def _request(group: Sequence[EntryChange]) -> Request:
    command = wire.IPSET_CMD_ADD if group[0].is_add else wire.IPSET_CMD_DEL
    body = wire.format_entries(group[0].set_name, (change.entry for change in group))
    return Request(wire.message_type(command), 0, body)


def _reason(number: int) -> str:
    return str(kernel_error(number, "refused", wire.error_text(number)))
