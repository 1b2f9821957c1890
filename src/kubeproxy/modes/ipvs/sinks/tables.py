"""The kernel tables the sinks of one family use, opened when first needed.

Why: rendering for people must not need a kernel that has them, and tests put a fake in their
place. Everything belongs to the network namespace in which it is first used.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

from kubeproxy.kernel.ipset.table import Ipset, IpsetTable
from kubeproxy.kernel.ipvs.table import Ipvs, IpvsTable
from kubeproxy.kernel.route.table import Route, RouteTable


class Tables(Protocol):
    """The netlink families that the sinks use."""

    @property
    def ipvs(self) -> IpvsTable: ...

    @property
    def ipset(self) -> IpsetTable: ...

    @property
    def route(self) -> RouteTable: ...

    def close(self) -> None: ...


class KernelTables:
    """The tables of the real kernel."""

    @cached_property
    def ipvs(self) -> IpvsTable:
        return Ipvs()

    @cached_property
    def ipset(self) -> IpsetTable:
        return Ipset()

    @cached_property
    def route(self) -> RouteTable:
        return Route()

    def close(self) -> None:
        """Close the tables that are open; each opens again when needed."""
        for name in ("ipvs", "ipset", "route"):
            table = self.__dict__.pop(name, None)
            if table is not None:
                table.close()
