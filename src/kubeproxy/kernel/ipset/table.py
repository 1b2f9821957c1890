"""ipset: create, list and destroy sets, change many entries at once.

Why: sink, check and clean-up speak to ipset through these few calls, without a process. Promise:
adding what is there and deleting what is not are successes; a refused entry is named. Leaves to
others: which sets and entries.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kubeproxy.errors import KernelError, Rejected
from kubeproxy.kernel.ipset import wire as ipset
from kubeproxy.kernel.ipset.wire import Entry, Listed, SetHead
from kubeproxy.kernel.netlink import bulk, codec
from kubeproxy.kernel.netlink.bulk import Request
from kubeproxy.kernel.netlink.socket import NETLINK_NETFILTER, NetlinkSocket, kernel_error

_NO_SUBSYSTEM = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT})
"""What nfnetlink answers for a part of it that is not there."""

ENTRIES_PER_MESSAGE = 400
"""An attribute's length has 16 bits, and the longest entry takes 100 bytes."""


class EntryChange(NamedTuple):
    """One entry to add, or else to delete."""

    set_name: str
    entry: Entry
    is_add: bool


class Refused(NamedTuple):
    """An entry the kernel did not take, and why."""

    change: EntryChange
    reason: str


class IpsetTable(Protocol):
    """What the rest of the program asks of ipset."""

    def find(self, name: str) -> Listed | None: ...

    def create(self, name: str, head: SetHead) -> None: ...

    def change(self, changes: Sequence[EntryChange]) -> list[Refused]: ...

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
        self._request(ipset.CMD_PROTOCOL, ipset.format_protocol(), what="ask for ipset")

    def is_supported(self) -> bool:
        """Does the kernel have ipset at all? Where it has not, there are no sets either."""
        try:
            self.check()
        except KernelError as error:
            if error.errno in _NO_SUBSYSTEM:
                return False
            raise
        return True

    def find(self, name: str) -> Listed | None:
        """The set of this name with its entries, or None."""
        kind = ipset.message_type(ipset.CMD_LIST)
        try:
            replies = self._socket.dump(kind, ipset.format_name(name), what=f"list set {name}")
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        heads = [head for head in (ipset.parse_head(r.body) for r in replies) if head is not None]
        if not heads:
            return None
        found = (e for r in replies for e in ipset.parse_entries(r.body, heads[0].type))
        return Listed(heads[0], frozenset(found))

    def create(self, name: str, head: SetHead) -> None:
        """Make the set; an equal one is fine, another one of that name is a Rejected."""
        body = ipset.format_create(name, head, self._revision(head))
        try:
            self._request(ipset.CMD_CREATE, body, codec.NLM_F_CREATE, what=f"create set {name}")
        except KernelError as error:
            if error.errno == errno.EEXIST:
                raise Rejected(
                    f"create set {name}: there is one of another type; "
                    f"remove it (ipset destroy {name})",
                    errno=error.errno,
                ) from error
            raise

    def _revision(self, head: SetHead) -> int:
        if head not in self._revisions:
            what = f"ask for set type {head.type}"
            replies = self._request(ipset.CMD_TYPE, ipset.format_type_request(head), what=what)
            self._revisions[head] = ipset.parse_revision(replies[0].body)
        return self._revisions[head]

    def destroy(self, name: str) -> bool:
        """Remove the set; False if there was none."""
        flags = codec.NLM_F_EXCL
        try:
            self._request(
                ipset.CMD_DESTROY, ipset.format_name(name), flags, what=f"destroy set {name}"
            )
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True

    def change(self, changes: Sequence[EntryChange]) -> list[Refused]:
        """Add and delete entries, many in a message; those that were refused."""
        groups = list(_groups(changes))
        refused = bulk.send_bulk(self._socket, [_request(group) for group in groups])
        if not refused:
            return []
        # A message stops at its first bad entry: send its entries again, each alone.
        singles = [change for place, _ in refused for change in groups[place]]
        failures = bulk.send_bulk(self._socket, [_request([change]) for change in singles])
        return [Refused(singles[r.place], _reason(r.failure.errno)) for r in failures]

    def _request(
        self, command: int, body: bytes, flags: int = 0, *, what: str
    ) -> list[codec.Message]:
        kind = ipset.message_type(command)
        try:
            return self._socket.request(kind, body, flags, what=what)
        except KernelError as error:
            words = ipset.error_text(error.errno)
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
    command = ipset.CMD_ADD if group[0].is_add else ipset.CMD_DEL
    body = ipset.format_entries(group[0].set_name, (change.entry for change in group))
    return Request(ipset.message_type(command), 0, body)


def _reason(number: int) -> str:
    return str(kernel_error(number, "refused", ipset.error_text(number)))
