"""What an operator allows on this node, whatever objects say: addresses and ports."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, omit_defaults=True, gc=False):
    """Lists of networks that are allowed, of both families, and ports that are not.

    An empty list allows everything. One that has networks of one family only allows none of the
    other.
    """

    endpoint_cidrs: tuple[str, ...] = ()
    external_ip_cidrs: tuple[str, ...] = ()
    load_balancer_cidrs: tuple[str, ...] = ()
    refused_node_ports: tuple[tuple[int, int], ...] = ()
    """Ports of the node itself that no endpoint may be, from and to."""


NO_LIMITS = Limits()
