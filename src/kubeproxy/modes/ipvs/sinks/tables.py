"""The kernel tables the sinks of one family use, opened when first needed.

Why: rendering for people must not need a kernel that has them, and tests put a fake in their
place. Everything belongs to the network namespace in which it is first used.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

from kubeproxy.kernel.ipset.table import Ipset, IpsetTable
from kubeproxy.kernel.ipvs.table import Ipvs, IpvsTable
from kubeproxy.kernel.route.table import Interfaces, LinkTable


class Tables(Protocol):
    """What the sinks need."""

    @property
    def ipvs(self) -> IpvsTable: ...

    @property
    def ipset(self) -> IpsetTable: ...

    @property
    def links(self) -> LinkTable: ...

    def close(self) -> None: ...


class KernelTables:
    """The real ones."""

    @cached_property
    def ipvs(self) -> IpvsTable:
        return Ipvs()

    @cached_property
    def ipset(self) -> IpsetTable:
        return Ipset()

    @cached_property
    def links(self) -> LinkTable:
        return Interfaces()

    def close(self) -> None:
        """Close what was opened; it opens again when needed."""
        for name in ("ipvs", "ipset", "links"):
            table = self.__dict__.pop(name, None)
            if table is not None:
                table.close()
