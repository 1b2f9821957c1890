"""The items of this mode that are not iptables rules, and what effects teach about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.plan.types import PoolName


class Listener(NamedTuple):
    """A proxy port that serves one pool of a service port; its value is a `Balance`."""

    owner: ServicePortId
    pool: PoolName


class Claim(NamedTuple):
    """A port of this node (address empty: on all of them) held so that nothing else takes it.

    Its value is the service port it is held for; of several that want it, the smallest.
    """

    address: str
    port: int
    protocol: Protocol


class PortalOptions(Struct, frozen=True):
    """What configuration says about portals: where proxy ports listen, and whether processes of
    the node reach node ports at 127.0.0.1."""

    listen_address: str
    serves_localhost: bool = True


class Learned(Struct, frozen=True):
    """What came of binding: the port of each listener, and who holds each claim."""

    ports: Mapping[Listener, int] = {}
    claims: Mapping[Claim, ServicePortId] = {}
