"""The host's links and addresses: list them, follow their changes, keep a dummy link.

Why: node ports follow the host's addresses, and ipvs mode binds service addresses to a link of its
own. Promise: addresses are canonical text, and adding an address that is there and deleting one
that is not are successes. Leaves to others: which links and addresses matter.

Everything happens in the network namespace that was current when the object was made.
"""

from __future__ import annotations

import contextlib
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
from kubeproxy.kernel.route import wire
from kubeproxy.kernel.route.wire import Link, LinkAddress

_ABSENT = frozenset({errno.ENODEV, errno.EADDRNOTAVAIL, errno.ENOENT})
_CREATE = codec.NLM_F_CREATE | codec.NLM_F_EXCL
# A root name server: an address to which nothing but the default route leads.
_FAR_AWAY = (
    (Family.IPV4, socket.AF_INET, "198.41.0.4"),
    (Family.IPV6, socket.AF_INET6, "2001:503:ba3e::2:30"),
)


class RouteTable(Protocol):
    """The calls that the sinks make; tests put a fake in their place."""

    def link(self, name: str) -> Link | None: ...

    def addresses(self, family: Family | None = None) -> tuple[LinkAddress, ...]: ...

    def ensure_dummy(self, name: str) -> Link: ...

    def change_host_addresses(
        self, link: Link, *, add: Sequence[str] = (), delete: Sequence[str] = ()
    ) -> list[tuple[str, str]]: ...

    def close(self) -> None: ...


class Route:
    """Requests about links and addresses over one socket; not shared between tasks."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(NETLINK_ROUTE)

    def __enter__(self) -> Route:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def links(self) -> tuple[Link, ...]:
        replies = self._socket.dump(wire.RTM_GETLINK, wire.format_link_dump(), what="list links")
        return tuple(wire.parse_link(r.body) for r in replies if r.type == wire.RTM_NEWLINK)

    def link(self, name: str) -> Link | None:
        """The link of this name, if there is one."""
        body = wire.format_link_name(name)
        try:
            replies = self._socket.request(wire.RTM_GETLINK, body, what=f"find link {name}")
        except KernelError as error:
            if error.errno in _ABSENT:
                return None
            raise
        return wire.parse_link(replies[0].body)

    def addresses(self, family: Family | None = None) -> tuple[LinkAddress, ...]:
        """All addresses of all links, of one family or of both."""
        body = wire.format_address_dump(family)
        replies = self._socket.dump(wire.RTM_GETADDR, body, what="list addresses")
        found = (wire.parse_address(r.body) for r in replies if r.type == wire.RTM_NEWADDR)
        return tuple(address for address in found if address is not None)

    def ensure_dummy(self, name: str) -> Link:
        """Make a dummy link unless a link of any kind has this name. Return the link."""
        present = self.link(name)
        if present is not None:
            return present
        body, what = wire.format_new_link(name, "dummy"), f"create dummy link {name}"
        try:
            self._socket.request(wire.RTM_NEWLINK, body, _CREATE, what=what)
        except KernelError as error:
            # Another process, or our other family, may have made it meanwhile.
            if error.errno != errno.EEXIST:
                raise
        made = self.link(name)
        if made is None:
            raise KernelError(f"{what}: it vanished at once")
        return made

    def delete_link(self, link: Link) -> None:
        """Remove a link with its addresses, unless it has gone already."""
        body = wire.format_link_index(link.index)
        try:
            self._socket.request(wire.RTM_DELLINK, body, what=f"delete link {link.name}")
        except KernelError as error:
            if error.errno not in _ABSENT:
                raise

    def change_host_addresses(
        self, link: Link, *, add: Sequence[str] = (), delete: Sequence[str] = ()
    ) -> list[tuple[str, str]]:
        """Bind and unbind many addresses in few calls. Return those refused, each with why."""
        bodies = [wire.format_host_address(link.index, address) for address in (*add, *delete)]
        requests = [Request(wire.RTM_NEWADDR, _CREATE, body) for body in bodies[: len(add)]]
        requests += [Request(wire.RTM_DELADDR, 0, body) for body in bodies[len(add) :]]
        addresses = (*add, *delete)
        return [
            (addresses[place], str(kernel_error(failure.errno, link.name, failure.text)))
            for place, failure in send_bulk(self._socket, requests)
            if failure.errno != (errno.EEXIST if place < len(add) else errno.EADDRNOTAVAIL)
        ]


def host_addresses(*, without_links: Collection[str]) -> dict[Family, tuple[str, ...]]:
    """The host's addresses by family, sorted, without those on the links of these names.

    An address counts if it is on any other link, also if it is on one of these as well.
    """
    with Route() as route:
        skipped = {link.index for link in route.links() if link.name in without_links}
        return group_addresses(a for a in route.addresses() if a.link not in skipped)


def group_addresses(addresses: Iterable[LinkAddress]) -> dict[Family, tuple[str, ...]]:
    """Each family's addresses, sorted, each once."""
    groups: dict[Family, set[str]] = {family: set() for family in Family}
    for found in addresses:
        groups[found.family].add(found.address)
    return {family: tuple(sorted(group)) for family, group in groups.items()}


def default_route_sources() -> dict[Family, str]:
    """The address from which this host reaches others by its default route, if it has one.

    The kernel is asked with a socket: it knows of metrics, preferred sources and further tables.
    Connecting a UDP socket sends nothing.
    """
    found: dict[Family, str] = {}
    for family, kind, far in _FAR_AWAY:
        with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 53))
            found[family] = probe.getsockname()[0]
    return found


async def watch_addresses(changed: Callable[[], None], *, without_links: Collection[str]) -> None:
    """Call `changed` at once, and whenever an address of the host comes or goes, until cancelled.

    The first call covers what changed after the caller had read them and before the watch began.
    Events about the links of these names are passed over, so that our own binding of service
    addresses causes no work. Lost events count as a change.
    """
    groups = (wire.RTNLGRP_IPV4_IFADDR, wire.RTNLGRP_IPV6_IFADDR)
    with NetlinkMonitor(NETLINK_ROUTE, groups) as monitor:
        changed()
        while True:
            try:
                messages = await monitor.receive()
            except Overrun:
                changed()
                continue
            if any(_concerns_host(message, without_links) for message in messages):
                changed()


def _concerns_host(message: codec.Message, without_links: Collection[str]) -> bool:
    if message.type not in (wire.RTM_NEWADDR, wire.RTM_DELADDR):
        return False
    try:
        return socket.if_indextoname(wire.parse_address_link(message.body)) not in without_links
    except OSError:
        # The link went with its addresses, and its name cannot be found out any more.
        return True
