"""The sink for the dummy link and the service addresses on it.

An address on the link makes packets for it arrive at this host, where IPVS takes them. It is the
last thing to come and the first to go: until it is there, nothing of a half-built service is
reachable, and once it is gone nobody can fall through to a port of the host.

Recognised as ours: every address on the link, whoever put it there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.errors import Rejected
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.route.table import LinkTable
from kubeproxy.modes.base import Batch, Change, Item, Value
from kubeproxy.modes.ipvs.items import PRESENT, BoundAddress, ServiceLink
from kubeproxy.modes.ipvs.names import SERVICE_LINK
from kubeproxy.modes.ipvs.sinks.tables import Tables

_ADDRESSES_PER_BATCH = 1000
_BYTES_PER_ADDRESS = 40


class AddressSink:
    """The service addresses of one family."""

    name = "addresses"
    item_types: tuple[type, ...] = (ServiceLink, BoundAddress)

    def __init__(self, tables: Tables, family: Family) -> None:
        self._tables = tables
        self._family = family

    async def read(self) -> Mapping[Item, Value]:
        if self._tables.links.link(SERVICE_LINK) is None:
            return {}
        found: dict[Item, Value] = {ServiceLink(SERVICE_LINK): PRESENT}
        addresses = bound_addresses(self._tables.links, self._family)
        return found | {BoundAddress(address): PRESENT for address in addresses}

    def compile(self, changes: Sequence[Change]) -> Iterator[Batch]:
        """The link before its addresses."""
        ordered = sorted(changes, key=lambda change: isinstance(change.item, BoundAddress))
        for start in range(0, len(ordered), _ADDRESSES_PER_BATCH):
            part = tuple(ordered[start : start + _ADDRESSES_PER_BATCH])
            yield Batch(part, None, size=len(part) * _BYTES_PER_ADDRESS)

    async def apply(self, batch: Batch) -> None:
        """Part of a refused batch may be in the kernel; doing it again does no harm."""
        link = self._tables.links.ensure_dummy(SERVICE_LINK)
        refused = self._tables.links.change_host_addresses(
            link,
            add=[a for a, change in _addresses(batch) if change.new is not None],
            delete=[a for a, change in _addresses(batch) if change.new is None],
        )
        if refused:
            raise Rejected("; ".join(f"address {a}: {reason}" for a, reason in refused[:3]))


def _addresses(batch: Batch) -> Iterator[tuple[str, Change]]:
    for change in batch.changes:
        if isinstance(change.item, BoundAddress):
            yield change.item.address, change


def bound_addresses(links: LinkTable, family: Family) -> frozenset[str]:
    """The service addresses of a family that are bound now."""
    link = links.link(SERVICE_LINK)
    if link is None:
        return frozenset()
    found = (a.address for a in links.addresses(family) if a.link == link.index)
    return frozenset(address for address in found if not _is_kernels_own(address))


def _is_kernels_own(address: str) -> bool:
    """The kernel gives a link IPv6 addresses by itself."""
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or (parsed.version == 6 and parsed.is_link_local)
