"""The host's links and addresses: list them, hear about changes, keep a dummy link.

Why: node ports follow the host's addresses, and ipvs binds service addresses to a link of its
own. Promise: answers are canonical text; adding what is there and deleting what is not are
successes. Leaves to others: which addresses matter.

Everything happens in the network namespace that was current when the object was made.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.bulk import Request, send_bulk
from kubeproxy.kernel.netlink.socket import (
    NETLINK_ROUTE,
    NetlinkMonitor,
    NetlinkSocket,
    Overrun,
    kernel_error,
)
from kubeproxy.kernel.route import wire as route
from kubeproxy.kernel.route.wire import Link, LinkAddress

SERVICE_LINK = "kube-ipvs0"
"""The dummy link that carries service addresses in ipvs mode. They are not the node's."""

NOT_OURS = frozenset({SERVICE_LINK})
"""Links whose addresses are no node addresses."""

_NO_ADDRESS = frozenset({errno.EADDRNOTAVAIL})
_ABSENT = frozenset({errno.ENODEV, errno.EADDRNOTAVAIL, errno.ENOENT})


class LinkTable(Protocol):
    """What a mode that binds service addresses asks of links."""

    def link(self, name: str) -> Link | None: ...

    def addresses(self, family: Family | None = None) -> tuple[LinkAddress, ...]: ...

    def ensure_dummy(self, name: str) -> Link: ...

    def change_host_addresses(
        self, link: Link, *, add: Sequence[str] = (), delete: Sequence[str] = ()
    ) -> list[tuple[str, str]]: ...

    def close(self) -> None: ...


class Interfaces:
    """Requests about links and addresses over one socket; not shared between tasks."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(NETLINK_ROUTE)

    def __enter__(self) -> Interfaces:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def links(self) -> tuple[Link, ...]:
        replies = self._socket.dump(route.RTM_GETLINK, route.list_links(), what="list links")
        return tuple(route.parse_link(r.body) for r in replies if r.type == route.RTM_NEWLINK)

    def link(self, name: str) -> Link | None:
        """The link of this name, if there is one."""
        try:
            replies = self._socket.request(
                route.RTM_GETLINK, route.get_link(name), what=f"find link {name}"
            )
        except KernelError as error:
            if error.errno in _ABSENT:
                return None
            raise
        return route.parse_link(replies[0].body)

    def addresses(self, family: Family | None = None) -> tuple[LinkAddress, ...]:
        """All addresses of all links, of one family or of both."""
        body = route.list_addresses(family)
        replies = self._socket.dump(route.RTM_GETADDR, body, what="list addresses")
        found = (route.parse_address(r.body) for r in replies if r.type == route.RTM_NEWADDR)
        return tuple(address for address in found if address is not None)

    def ensure_dummy(self, name: str) -> Link:
        """The link of this name; made if there is none, accepted as it is if there is one."""
        present = self.link(name)
        if present is not None:
            return present
        flags = codec.NLM_F_CREATE | codec.NLM_F_EXCL
        try:
            body = route.new_link(name, "dummy")
            self._socket.request(route.RTM_NEWLINK, body, flags, what=f"create dummy link {name}")
        except KernelError as error:
            if error.errno != errno.EEXIST:
                raise
        made = self.link(name)
        if made is None:
            raise KernelError(f"create dummy link {name}: it vanished at once")
        return made

    def delete_link(self, link: Link) -> None:
        """Remove a link with its addresses; a missing one is fine."""
        body = route.delete_link(link.index)
        self._forgiving(route.RTM_DELLINK, body, 0, _ABSENT, f"delete link {link.name}")

    def add_host_address(self, link: Link, address: str) -> None:
        """Bind an address with the whole prefix length; one that is there is fine."""
        flags = codec.NLM_F_CREATE | codec.NLM_F_EXCL
        what = f"bind {address} to {link.name}"
        body = route.host_address(link.index, address)
        self._forgiving(route.RTM_NEWADDR, body, flags, {errno.EEXIST}, what)

    def delete_host_address(self, link: Link, address: str) -> None:
        """Unbind an address; one that is not there is fine."""
        what = f"unbind {address} from {link.name}"
        body = route.host_address(link.index, address)
        self._forgiving(route.RTM_DELADDR, body, 0, _ABSENT, what)

    def change_host_addresses(
        self, link: Link, *, add: Sequence[str] = (), delete: Sequence[str] = ()
    ) -> list[tuple[str, str]]:
        """Bind and unbind many addresses in few calls; those refused, and why."""
        flags = codec.NLM_F_CREATE | codec.NLM_F_EXCL
        requests = [
            Request(route.RTM_NEWADDR, flags, route.host_address(link.index, a)) for a in add
        ]
        requests += [
            Request(route.RTM_DELADDR, 0, route.host_address(link.index, a)) for a in delete
        ]
        addresses = (*add, *delete)
        return [
            (addresses[place], str(kernel_error(failure.errno, link.name, failure.text)))
            for place, failure in send_bulk(self._socket, requests)
            if failure.errno not in ({errno.EEXIST} if place < len(add) else _NO_ADDRESS)
        ]

    def _forgiving(
        self, kind: int, body: bytes, flags: int, fine: Collection[int], what: str
    ) -> None:
        try:
            self._socket.request(kind, body, flags, what=what)
        except KernelError as error:
            if error.errno not in fine:
                raise


def host_addresses(*, without_links: Collection[str] = NOT_OURS) -> dict[Family, tuple[str, ...]]:
    """The host's addresses by family, sorted, without those on links that are not the node's.

    Decided link by link: an address may be on the service link and on another one as well.
    """
    with Interfaces() as interfaces:
        skipped = {link.index for link in interfaces.links() if link.name in without_links}
        return group_addresses(a for a in interfaces.addresses() if a.link not in skipped)


def group_addresses(addresses: Iterable[LinkAddress]) -> dict[Family, tuple[str, ...]]:
    """Each family's addresses, sorted, each once."""
    groups: dict[Family, set[str]] = {family: set() for family in Family}
    for found in addresses:
        groups[found.family].add(found.address)
    return {family: tuple(sorted(group)) for family, group in groups.items()}


async def watch_addresses(
    changed: Callable[[], None], *, without_links: Collection[str] = NOT_OURS
) -> None:
    """Call `changed` whenever an address of the host comes or goes; runs until cancelled.

    News about links in `without_links` is passed over, so that our own binding of service
    addresses wakes nobody. Lost news counts as a change.
    """
    groups = (route.GROUP_IPV4_ADDRESSES, route.GROUP_IPV6_ADDRESSES)
    with NetlinkMonitor(NETLINK_ROUTE, groups) as monitor:
        while True:
            try:
                news = await monitor.receive()
            except Overrun:
                changed()
                continue
            if any(_concerns_host(message, without_links) for message in news):
                changed()


def _concerns_host(message: codec.Message, without_links: Collection[str]) -> bool:
    if message.type not in (route.RTM_NEWADDR, route.RTM_DELADDR):
        return False
    try:
        return socket.if_indextoname(route.address_link(message.body)) not in without_links
    except OSError:
        # The link went with its addresses: nobody can say any more which it was.
        return True
