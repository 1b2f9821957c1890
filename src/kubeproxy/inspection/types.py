"""What a running proxy shows of itself: the answers of the inspection API, version 1.

Values only, the same in the daemon that encodes them and in `kpctl` that decodes them, as JSON. A
Service is shown as the facts that the daemon holds. Plans and items are left out: they depend on
nothing but facts, so that `kpctl` computes them with the daemon's own code, and the daemon spends
nothing on it. Times are wall clock seconds.

A field may be added within a version. Anything else is another version, with another path.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw, Struct

from kubeproxy.facts.endpoint import SliceFacts
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.modes.base import Carried

VERSION = "v1"

PATHS = {
    f"/{VERSION}/status": "the proxy as a whole: Status",
    f"/{VERSION}/history": "the last rounds, repairs and searches for stale flows: History",
    f"/{VERSION}/services": "all Services, 100 at a time: Page; `?cursor=` takes its `next`",
    f"/{VERSION}/services/NAMESPACE/NAME": "one Service: a list of Held, one for each IP family",
    f"/{VERSION}/changes": "which Services changed: Changes; `?since=` takes an earlier mark",
    f"/{VERSION}/connections": "what the mode itself carries (userspace): CarriedConnections",
}
"""What can be asked for, for people."""


class Changed(Struct, frozen=True, gc=False):
    """When the objects of a Service last changed, and by which event."""

    at: float
    event: str


class EndpointChange(Struct, frozen=True, gc=False):
    """One endpoint whose state changed lately: `before` and `after` are words, empty if absent."""

    at: float
    endpoint: str
    before: str
    after: str


class Refused(Struct, frozen=True, gc=False):
    """A service port, or a whole Service, that is not programmed as it should be, and why."""

    what: str
    reason: str


class Problem(Struct, frozen=True, gc=False):
    """An object, or a part of one, that cannot be used."""

    at: float
    kind: str
    name: str
    reason: str


class Round(Struct, frozen=True, gc=False):
    """One round of one family. Latencies are from an event's trigger time to the round's end."""

    at: float
    family: Family
    is_full: bool
    seconds: float
    services: int
    changes: int
    batches: int
    bytes_sent: int
    refused: int
    error: str
    latencies: int
    worst_latency_seconds: float


class FlowSearch(Struct, frozen=True, gc=False):
    """One search for stale flows, beside the rounds.

    `deleted` counts entries of the connection tracking table, `owed` service ports whose flows must
    still be looked through.
    """

    at: float
    family: Family
    seconds: float
    deleted: int
    owed: int
    error: str = ""


class Repair(Struct, frozen=True, gc=False):
    """Something of ours that another process changed, and that was put right again.

    `cause` is what was noticed, with the process that did it where that is known. `items` counts
    what differed, and `lines` shows the first of them.
    """

    at: float
    family: Family
    cause: str
    items: int
    lines: tuple[str, ...] = ()


class Collection(Struct, frozen=True, gc=False):
    """One collection of objects. `state` is `listing`, `watching` or `failing`, for `seconds`."""

    name: str
    state: str
    seconds: float
    problem: str = ""


class FamilyStatus(Struct, frozen=True):
    """One IP family.

    `queued` counts Services and slices with changes that no round has taken, `flows_owed` service
    ports whose stale flows may not be deleted yet.
    """

    family: Family
    node: NodeFacts
    services: int
    service_ports: int
    endpoints: int
    items: int
    queued: int
    is_healthy: bool
    last_sync_at: float | None
    refused: tuple[Refused, ...] = ()
    flows_owed: int = 0


class Status(Struct, frozen=True):
    """The proxy as a whole.

    `config` is the configuration as a v1alpha1 document, and `extensions` the flags of our own:
    with both, `kpctl` makes the same settings. `checked` counts addresses whose health is checked,
    and `failing` those of them that fail.
    """

    version: str
    kubernetes: str
    process: int
    started_at: float
    now: float
    node: str
    mode: str
    source: str
    config: Raw
    extensions: Mapping[str, str]
    families: tuple[FamilyStatus, ...]
    collections: tuple[Collection, ...]
    problems: tuple[Problem, ...]
    repairs: int
    rounds: int
    last_round: Round | None = None
    checked: int = 0
    failing: int = 0


class CarriedConnections(Struct, frozen=True):
    """Connections that the proxy itself carries, by family; empty where the kernel does."""

    families: Mapping[Family, Carried] = {}


class History(Struct, frozen=True):
    """The last rounds, repairs and searches for stale flows, the oldest first."""

    rounds: tuple[Round, ...]
    repairs: tuple[Repair, ...]
    flow_searches: tuple[FlowSearch, ...] = ()


class Held(Struct, frozen=True, omit_defaults=True):
    """One Service as the daemon holds it in one family.

    `service` is None where slices name a Service that does not exist or is not served here.
    `failing` has the reason by endpoint, of those that fail their health check. `learned` is what
    rendering depends on besides the facts (in userspace mode: its ports).
    """

    name: ServiceName
    family: Family
    service: ServiceFacts | None
    slices: tuple[SliceFacts, ...]
    changed: Changed | None = None
    endpoint_changes: tuple[EndpointChange, ...] = ()
    refused: tuple[Refused, ...] = ()
    learned: Raw = Raw(b"null")
    failing: Mapping[str, str] = {}


class Changes(Struct, frozen=True):
    """The Services that changed since a mark, those that no longer exist among them.

    `mark` is what to ask with next time. With `is_reset` more happened than is remembered, or in
    another process: everything must be read again.
    """

    mark: str
    names: tuple[ServiceName, ...] = ()
    is_reset: bool = False


class Page(Struct, frozen=True):
    """Some of all Services. `next` is the cursor of the following page; empty on the last one."""

    items: tuple[Held, ...]
    next: str = ""
