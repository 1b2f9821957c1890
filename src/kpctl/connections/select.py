"""Which Services a person asks about: a name, a namespace, or an address with a port. Pure."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.facts.address import parse_ip
from kubeproxy.facts.ids import ServiceName, ServicePortId
from kubeproxy.plan.types import ServicePlan


class Selection(Struct, frozen=True):
    """What was asked for; empty parts stand for anything."""

    namespace: str = ""
    name: str = ""
    address: str = ""
    port: int = 0

    @property
    def service(self) -> ServiceName | None:
        """The one Service that is meant, if it is one by name."""
        return ServiceName(self.namespace, self.name) if self.name else None

    @property
    def is_everything(self) -> bool:
        return self == Selection()

    def has(self, owner: ServicePortId) -> bool:
        """Is this service port asked for by its name?"""
        return self.namespace in ("", owner.namespace) and self.name in ("", owner.name)

    def matches(self, plan: ServicePlan) -> bool:
        """Is this service port asked for, by name or by a place where its traffic arrives?"""
        if not self.port:
            return self.has(plan.id)
        return any(
            frontend.port == self.port and frontend.address == self.address
            for frontend in plan.frontends
        )


def parse_selection(text: str, namespace: str = "") -> Selection:
    """`NAME`, `NAMESPACE/NAME`, `ADDRESS:PORT` or the number of a node port. Raises ValueError."""
    if not text:
        return Selection(namespace)
    if text.isdecimal():
        return Selection(port=_port(text))
    if "/" in text:
        within, _, name = text.partition("/")
        return Selection(within, name)
    if ":" in text:
        host, _, port = text.rpartition(":")
        parsed = parse_ip(host.strip("[]"))
        if parsed is None:
            raise ValueError(f"{host} is no address")
        return Selection(address=parsed[1], port=_port(port))
    return Selection(namespace or "default", text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:6]) < 65536:
        raise ValueError(f"{text} is no port")
    return int(text)
