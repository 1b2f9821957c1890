"""What a person asks about: a Service by name, a place where traffic arrives, or a node port. Pure.

web, shop/web, shop/web:http           a name, with namespace and port name if wanted
10.96.0.10:80, [fd00::10]:80/udp       an address and port, with a protocol if wanted
10.96.0.10                             an address with all of its ports
30080, 30080/tcp                       a node port
"""

from __future__ import annotations

import re

from msgspec import Struct

from kpctl.look.exits import NOT_FOUND, USAGE
from kpctl.snapshot.types import Snapshot
from kubeproxy.errors import ProxyError
from kubeproxy.facts.address import join_host_port, parse_ip
from kubeproxy.facts.ids import Family, Protocol, ServiceName, ServicePortId
from kubeproxy.plan.types import FrontendKind, ServicePlan

Found = tuple[Family, ServicePlan]
ServicePorts = frozenset[tuple[Family, ServicePortId]]

_PROTOCOL = re.compile(r"(.*)/(tcp|udp|sctp)", re.IGNORECASE)
_PLACE = re.compile(r"\[([^\]]*)\](?::(\d+))?|([0-9.]+)(?::(\d+))?")
_NAME = re.compile(r"(?:([^/:]+)/)?([^/:]+)(?::([^/:]+))?")


class WrongQuestion(ProxyError):
    """What was asked is not understood."""

    exit_code = USAGE


class NothingFound(ProxyError):
    """No Service is what was asked for."""

    exit_code = NOT_FOUND


class Target(Struct, frozen=True):
    """One question. Fields that were not given are empty, 0 or None and match everything."""

    namespace: str = ""
    name: str = ""
    port_name: str | None = None
    address: str = ""
    port: int = 0
    node_port: int = 0
    protocol: Protocol | None = None

    @property
    def service(self) -> ServiceName | None:
        """The one Service that is meant, if that is certain."""
        return ServiceName(self.namespace, self.name) if self.namespace and self.name else None

    @property
    def is_everything(self) -> bool:
        return self == Target()

    @property
    def text(self) -> str:
        """What was asked for, for messages."""
        protocol = f"/{self.protocol.value}" if self.protocol else ""
        if self.address:
            place = join_host_port(self.address, self.port) if self.port else self.address
            return place + protocol
        if self.node_port:
            return f"{self.node_port}{protocol}"
        if not self.name:
            return ""
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return name if self.port_name is None else f"{name}:{self.port_name}"


def parse_target(text: str, namespace: str = "") -> Target:
    """Return what the text asks for; a name without namespace is in `namespace`.

    Raises WrongQuestion.
    """
    protocol = None
    found = _PROTOCOL.fullmatch(text)
    # A Service may be named `tcp`: then a namespace is in front, not digits or a place.
    if found and (found[1].isdecimal() or _PLACE.fullmatch(found[1])):
        text, protocol = found[1], Protocol(found[2].upper())
    if text.isdecimal():
        return Target(node_port=_port(text), protocol=protocol, namespace=namespace)
    if parse_ip(text):
        text = f"[{text}]"
    if (found := _PLACE.fullmatch(text)) and (ip := parse_ip(found[1] or found[3])):
        port = _port(found[2] or found[4]) if found[2] or found[4] else 0
        return Target(address=ip[1], port=port, protocol=protocol, namespace=namespace)
    if found := _NAME.fullmatch(text):
        return Target(namespace=found[1] or namespace, name=found[2], port_name=found[3])
    raise WrongQuestion(
        f"{text!r} is neither a Service (shop/web), nor an address and port (10.96.0.10:80), nor a"
        " node port (30080)"
    )


def parse_pod(text: str) -> str:
    """Return the address of a pod in its usual form, or nothing if nothing is given.

    Raises WrongQuestion.
    """
    parsed = parse_ip(text) if text else ("", "")
    if parsed is None:
        raise WrongQuestion(f"{text!r} is not an IP address")
    return parsed[1]


def _port(text: str) -> int:
    if len(text) > 5 or not 0 < int(text) < 65536:
        raise WrongQuestion(f"{text} is no port: ports are 1 to 65535")
    return int(text)


def matches(target: Target, plan: ServicePlan, node_addresses: tuple[str, ...] = ()) -> bool:
    """Is this service port asked for? Node ports are also found at `node_addresses`."""
    if target.namespace and plan.id.namespace != target.namespace:
        return False
    if target.name and plan.id.name != target.name:
        return False
    if target.port_name is not None and plan.id.port != target.port_name:
        return False
    if target.protocol is not None and plan.id.protocol is not target.protocol:
        return False
    if target.node_port:
        return plan.node_port == target.node_port
    return not target.address or _has_place(target, plan, node_addresses)


def _has_place(target: Target, plan: ServicePlan, node_addresses: tuple[str, ...]) -> bool:
    for frontend in plan.frontends:
        places: tuple[str, ...] = (frontend.address,)
        if frontend.kind is FrontendKind.NODE_PORT:
            places = node_addresses if target.port else ()
        if target.address in places and target.port in (0, frontend.port):
            return True
    return False


def find(snapshot: Snapshot, target: Target, only: Family | None = None) -> list[Found]:
    """Return the plans that are asked for, those of one Service together."""
    places = {family: p.node.node_port_addresses for family, p in snapshot.pipelines.items()}
    found = [
        (family, plan)
        for family, plan in snapshot.plans()
        if only in (None, family) and matches(target, plan, places[family])
    ]
    order = tuple(Family).index
    return sorted(found, key=lambda each: (each[1].id.service, order(each[0]), each[1].id))


def service_ports(snapshot: Snapshot, target: Target) -> ServicePorts | None:
    """Return the service ports that are asked for, or None for all. Raises NothingFound."""
    if target.is_everything:
        return None
    found = frozenset((family, plan.id) for family, plan in find(snapshot, target))
    if not found:
        asked = target.text or f"in namespace {target.namespace}"
        raise NothingFound(f"no Service {asked} is served by {snapshot.origin}")
    return found
