"""The items of this mode and what binding their sockets teaches.

    Listener    a proxy port that serves one pool of a service port   → its Balance
    Claim       a port of this node, held so that nothing else has it → the service port it is for
    Uncarried   a service port that this mode cannot carry            → the reason, to be logged
    RuleItem    chains, sections and jumps of iptables                → see `netfilter.items`

The first three are the socket sink's, the last those of the netfilter sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.modes.netfilter.items import RuleItem, RuleValue
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.plan.types import PoolName


class Listener(NamedTuple):
    """A proxy port that serves one pool of a service port."""

    owner: ServicePortId
    pool: PoolName


class Claim(NamedTuple):
    """A port of this node that a frontend occupies; an empty address stands for all of them.

    Of several service ports that want it, the smallest holds it.
    """

    address: str
    port: int
    protocol: Protocol


class Uncarried(NamedTuple):
    """A service port that this mode cannot carry.

    It is an item because rendering is pure and cannot log: applying the item logs its value.
    """

    owner: ServicePortId


class Learned(Struct, frozen=True):
    """The outcome of binding: the port of each listener, and the holder of each claim."""

    ports: Mapping[Listener, int] = {}
    claims: Mapping[Claim, ServicePortId] = {}


SocketItem: TypeAlias = Listener | Claim | Uncarried
SocketValue: TypeAlias = Balance | ServicePortId | str

Item: TypeAlias = SocketItem | RuleItem
Value: TypeAlias = SocketValue | RuleValue
Fragment: TypeAlias = Mapping[Item, Value]
