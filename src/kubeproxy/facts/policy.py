"""What a Service asks for beyond the API's fields: how it is balanced, checked, drained, guarded.

Annotations ask for it (`api/annotations`). A Service without any has no `Policy` at all, so that
what is not used costs one pointer. None stands for the default everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

DEFAULT_WEIGHT = 1
"""Of an endpoint without a weight."""


class Algorithm(StrEnum):
    """How the endpoint of a new connection is chosen."""

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    SOURCE_HASH = "source-hash"
    CONSISTENT_HASH = "consistent-hash"
    LEAST_CONNECTIONS = "least-connections"


class CheckKind(StrEnum):
    """How an endpoint is checked."""

    TCP = "tcp"
    HTTP = "http"
    HTTPS = "https"
    UDP = "udp"


class HealthCheck(Struct, frozen=True, gc=False, omit_defaults=True):
    """An active check of each endpoint.

    `port` is 0 for the endpoint's own. `path`, `host` and `statuses` (ranges, both ends included)
    are for HTTP; `send` and `expect` for UDP, where empty bytes expect any answer.
    `jitter_percent` is the part of the interval by which checks are spread at random.
    """

    kind: CheckKind
    path: str = ""
    port: int = 0
    host: str = ""
    statuses: tuple[tuple[int, int], ...] = ((200, 399),)
    interval_seconds: float = 10.0
    timeout_seconds: float = 1.0
    rise: int = 2
    fall: int = 3
    jitter_percent: int = 10
    send: bytes = b""
    expect: bytes = b""


class Policy(Struct, frozen=True, gc=False, omit_defaults=True):
    """What one Service asks for, in one family.

    `allow_sources` is None without a restriction; an empty one lets no client of this family in.
    `drain_seconds` is how long open connections to an endpoint that goes may go on: None without a
    limit, 0 not at all.
    """

    algorithm: Algorithm | None = None
    health_check: HealthCheck | None = None
    drain_seconds: float | None = None
    allow_sources: tuple[str, ...] | None = None
    deny_sources: tuple[str, ...] = ()


NO_POLICY = Policy()
"""What every Service without annotations asks for."""


class Rotation(Struct, frozen=True):
    """What decides how much each endpoint of one Service gets, besides readiness and hints.

    `weights` by address, where they are not 1; 0 takes no new connection. `failing` has the reason
    by endpoint (`ip:port`). `ignored` lists what slices hold that is not used, as sentences.
    """

    weights: Mapping[str, int] = {}
    failing: Mapping[str, str] = {}
    ignored: tuple[str, ...] = ()


FULL_ROTATION = Rotation()
"""Every endpoint takes its equal share; shared by all Services without weights and checks."""
