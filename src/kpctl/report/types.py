"""What the commands report, as data: `-o json` and `-o yaml` print these, the others their text.

The names are camelCase outside. A field may be added; one that is empty may be left out.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from kpctl.report.endpoints import EndpointReport
from kpctl.report.sources import Way
from kubeproxy.inspection.types import Problem, Refused


class FrontendReport(Struct, frozen=True, rename="camel"):
    """A place where traffic arrives, and what becomes of clients there."""

    kind: str
    at: tuple[str, ...]
    verdict: str
    because: str
    source_ranges: tuple[str, ...] = ()
    clients: tuple[Way, ...] = ()


class PortReport(Struct, frozen=True, rename="camel"):
    """One service port in one family.

    `faults` say why it does not serve as it should; `notes` are about what was decided.
    `claimed_by` are other service ports with a frontend at the same place.
    """

    service_port: str
    protocol: str
    ip_family: str
    port: int
    node_port: int
    internal_traffic_policy: str
    external_traffic_policy: str
    affinity_seconds: int
    health_check_node_port: int
    frontends: tuple[FrontendReport, ...]
    endpoints: tuple[EndpointReport, ...]
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    claimed_by: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()
    kernel_objects: tuple[str, ...] = ()
    algorithm: str = ""
    """What the Service asks for and the mode does; empty for the mode's default."""
    health_check: str = ""
    """How the endpoints are checked; empty if they are not."""
    draining: str = ""
    """What happens to open connections when an endpoint goes; empty for the default."""

    @property
    def label(self) -> str:
        return f"{self.service_port} {self.protocol}, {self.ip_family}"

    @property
    def used(self) -> int:
        return sum(endpoint.is_used for endpoint in self.endpoints)


class ChangeReport(Struct, frozen=True, rename="camel"):
    """When the objects of a Service last changed, and by which event."""

    at: datetime
    event: str


class EndpointChangeReport(Struct, frozen=True, rename="camel"):
    """One endpoint whose state changed lately; a state is empty where there was no endpoint."""

    at: datetime
    endpoint: str
    before: str
    after: str


class PlaceReport(Struct, frozen=True, rename="camel"):
    """A place where traffic arrives, and what its policy decides."""

    kind: str
    at: tuple[str, ...]
    verdict: str
    because: str


class ProgrammedReport(Struct, frozen=True, rename="camel"):
    """One service port as it is programmed: a document of `kpctl get`.

    `changed` is None if the proxy remembers no change since it started.
    """

    service_port: str
    protocol: str
    ip_family: str
    frontends: tuple[PlaceReport, ...]
    endpoints: tuple[EndpointReport, ...]
    changed: ChangeReport | None
    internal_traffic_policy: str
    external_traffic_policy: str
    affinity_seconds: int
    slices: tuple[str, ...]
    refused: tuple[str, ...] = ()
    algorithm: str = ""


class ServiceReport(Struct, frozen=True, rename="camel"):
    """One Service.

    `changed` is None if it has not changed since `remembered_since`, or so long ago that other
    Services have pushed it out of the proxy's memory.
    """

    service: str
    changed: ChangeReport | None
    remembered_since: datetime | None
    ports: tuple[PortReport, ...]
    endpoint_changes: tuple[EndpointChangeReport, ...] = ()
    problems: tuple[Problem, ...] = ()


class Explanation(Struct, frozen=True, rename="camel"):
    """The answer of `kpctl explain`. `faults` say why nothing was found."""

    asked: str
    origin: str
    node: str
    mode: str
    now: datetime | None
    services: tuple[ServiceReport, ...] = ()
    faults: tuple[str, ...] = ()
