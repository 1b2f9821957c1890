"""The sink for the dummy link and the service addresses on it.

An address on the link makes packets for it arrive at this host, where IPVS takes them. It is the
last thing to come and the first to go: until it is there, nothing of a half-built service is
reachable, and once it is gone no packet can fall through to a port of the host.

Recognised as ours: every address on the link, also one that another process put there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.errors import Rejected
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import SERVICE_LINK
from kubeproxy.kernel.route.table import RouteTable
from kubeproxy.modes.base import Batch, Change
from kubeproxy.modes.ipvs.compile.addresses import AddressWork, compile_addresses
from kubeproxy.modes.ipvs.items import PRESENT, AddressItem, BoundAddress, Presence, ServiceLink
from kubeproxy.modes.ipvs.sinks.tables import Tables


class AddressSink:
    """The service addresses of one family.

    Not transactional: part of a rejected batch may be in the kernel. Binding an address that is
    bound and unbinding one that is not succeed, so repeating a batch, whole or in part, is
    harmless.
    """

    name = "addresses"
    item_types: tuple[type, ...] = (ServiceLink, BoundAddress)
    is_transactional = False

    def __init__(self, tables: Tables, family: Family) -> None:
        self._tables = tables
        self._family = family

    async def read(self) -> Mapping[AddressItem, Presence]:
        if self._tables.route.link(SERVICE_LINK) is None:
            return {}
        found: dict[AddressItem, Presence] = {ServiceLink(SERVICE_LINK): PRESENT}
        addresses = bound_addresses(self._tables.route, self._family)
        return found | {BoundAddress(address): PRESENT for address in addresses}

    def compile(
        self, changes: Sequence[Change[AddressItem, Presence]]
    ) -> Iterator[Batch[AddressWork]]:
        return compile_addresses(changes)

    async def apply(self, batch: Batch[AddressWork]) -> None:
        """Bind and unbind addresses. Raises Rejected with those that were refused."""
        work = batch.payload
        link = self._tables.route.ensure_dummy(SERVICE_LINK)
        refused = self._tables.route.change_host_addresses(link, add=work.add, delete=work.delete)
        if refused:
            raise Rejected("; ".join(f"address {a}: {reason}" for a, reason in refused[:3]))


def bound_addresses(route: RouteTable, family: Family) -> frozenset[str]:
    """The service addresses of a family that are bound now."""
    link = route.link(SERVICE_LINK)
    if link is None:
        return frozenset()
    found = (a.address for a in route.addresses(family) if a.link == link.index)
    return frozenset(address for address in found if not _is_kernels_own(address))


def _is_kernels_own(address: str) -> bool:
    """Is it one of the IPv6 addresses that the kernel gives a link by itself?"""
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or (parsed.version == 6 and parsed.is_link_local)
