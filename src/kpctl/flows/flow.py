"""A flow: objects, steps, and packets with their fate, read from a file written for people.

The same flow runs against the plan, against a mode's items and against the real kernel. This
module only reads it and promises that what it returns is well-formed. A mistake is a `ConfigError`
that names the file, the step and the sentence. `docs/flows.md` describes the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from kpctl.flows.lasting import Becomes, parse_becomes
from kpctl.flows.text import (
    EndpointText,
    Expected,
    Packet,
    PortText,
    parse_endpoint,
    parse_expected,
    parse_packet,
    parse_port,
)
from kubeproxy.errors import ConfigError

VARIANTS = ("IPv4", "IPv6", "dual")
OTHERWISE = "otherwise"


class ServiceText(msgspec.Struct, frozen=True):
    """A Service as a flow writes it, with names in place of addresses.

    `hung_up` are hosts that do not listen any more, whatever the endpoints say.
    """

    name: str
    ports: tuple[PortText, ...]
    endpoints: tuple[EndpointText, ...] = ()
    type: str = "ClusterIP"
    external_policy: str = ""
    internal_policy: str = ""
    external_ips: tuple[str, ...] = ()
    load_balancer: tuple[str, ...] = ()
    proxied_load_balancer: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    affinity_seconds: int = 0
    health_check_node_port: int = 0
    algorithm: str = ""
    annotations: Mapping[str, str] = {}
    is_short: bool = False
    """Is it written in the short form of manifests?"""
    hung_up: tuple[str, ...] = ()
    allow_sources: tuple[str, ...] = ()
    deny_sources: tuple[str, ...] = ()


class Check(msgspec.Struct, frozen=True):
    """One packet and its fate, per mode where modes differ."""

    packet: Packet
    fates: Mapping[str, Expected]

    def expected(self, mode: str) -> Expected:
        return self.fates[mode] if mode in self.fates else self.fates[OTHERWISE]


class Packets(msgspec.Struct, frozen=True):
    """Send these, all at once."""

    checks: tuple[Check, ...]


class Apply(msgspec.Struct, frozen=True):
    """Change these Services to what is given here and leave the others."""

    services: tuple[ServiceText, ...]


class Remove(msgspec.Struct, frozen=True):
    """Delete a Service together with its endpoints."""

    service: str


class HangUp(msgspec.Struct, frozen=True):
    """Close the ports of a Service on these hosts. Its objects stay as they are."""

    service: str
    hosts: tuple[str, ...]


class Listen(msgspec.Struct, frozen=True):
    """Open the ports of a Service on these hosts again."""

    service: str
    hosts: tuple[str, ...]


class RestartProxy(msgspec.Struct, frozen=True):
    """End the proxy on every node with this signal and start it again."""

    signal: str


class StopProxy(msgspec.Struct, frozen=True):
    """End the proxy on every node with this signal, and do not start it again."""

    signal: str


class StartProxy(msgspec.Struct, frozen=True):
    """Start the proxy again after `StopProxy`."""


class StartLoad(msgspec.Struct, frozen=True):
    """Keep making new connections of this kind, and keep one open, until `StopLoad`."""

    packet: Packet


class StopLoad(msgspec.Struct, frozen=True):
    """End the load and check it: no connection has failed, and all these hosts have answered."""

    hosts: tuple[str, ...]


class Connect(msgspec.Struct, frozen=True):
    """Open a connection, which lasts until the end of the flow, under each of these names."""

    packets: Mapping[str, Packet]


class Connections(msgspec.Struct, frozen=True):
    """Check what has become of the lasting connections of these names, by mode."""

    fates: Mapping[str, Mapping[str, Becomes]]

    def expected(self, mode: str) -> Mapping[str, Becomes]:
        return {
            name: by_mode[mode] if mode in by_mode else by_mode[OTHERWISE]
            for name, by_mode in self.fates.items()
        }


class Wait(msgspec.Struct, frozen=True):
    """Let real time pass. Only for what the kernel times out by itself.

    On a machine that is slow at the moment this, affinity and limits of draining last longer, all
    by the same factor.
    """

    seconds: float


class HealthCheck(msgspec.Struct, frozen=True):
    """Check the health check port of a Service: the number of local endpoints on each node."""

    port: int
    nodes: Mapping[str, int]


class CleanUp(msgspec.Struct, frozen=True):
    """Stop the proxy, run it with --cleanup, and check that nothing of ours is left."""


class ForeignRules(msgspec.Struct, frozen=True):
    """Install rules of another program, which must be the same after every later step."""


class SwitchMode(msgspec.Struct, frozen=True):
    """Restart the proxy in another mode, and check that nothing of the old one remains.

    `is_overlapping`: the new one is started first and waits for the end of the old one. `flags` are
    those of the new one besides the flow's own.
    """

    other: Mapping[str, str]
    is_overlapping: bool = False
    flags: Mapping[str, str] = {}


Step: TypeAlias = (
    Packets
    | Apply
    | Remove
    | HangUp
    | Listen
    | RestartProxy
    | StopProxy
    | StartProxy
    | StartLoad
    | StopLoad
    | Connect
    | Connections
    | Wait
    | HealthCheck
    | CleanUp
    | ForeignRules
    | SwitchMode
)


class Flow(msgspec.Struct, frozen=True):
    """One file of the corpus."""

    name: str
    title: str
    services: tuple[ServiceText, ...]
    steps: tuple[Step, ...]
    proxy: Mapping[str, str] = {}
    variants: tuple[str, ...] = VARIANTS
    modes: tuple[str, ...] = ()
    story: str = ""
    """Why it is so, for readers."""

    def runs_in(self, mode: str) -> bool:
        return not self.modes or mode in self.modes

    @property
    def checks(self) -> tuple[Check, ...]:
        return tuple(c for step in self.steps if isinstance(step, Packets) for c in step.checks)


class _ServiceFields(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    ports: dict[str, str | int] = {}
    endpoints: list[str] = []
    type: str = "ClusterIP"
    external_traffic_policy: str = ""
    internal_traffic_policy: str = ""
    external_i_ps: list[str] = msgspec.field(default_factory=list, name="externalIPs")
    load_balancer: list[str] = []
    proxied_load_balancer: list[str] = []
    load_balancer_source_ranges: list[str] = []
    affinity_seconds: int = 0
    health_check_node_port: int = 0
    algorithm: str = ""
    annotations: dict[str, str] = {}
    short_form: bool = False
    allow_sources: list[str] = []
    deny_sources: list[str] = []


class _FlowFields(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    services: dict[str, dict[str, object]]
    steps: list[dict[str, object]]
    story: str = ""
    proxy: dict[str, str | int | bool] = {}
    variants: tuple[str, ...] = VARIANTS
    modes: list[str] = []


def load_flow(path: Path) -> Flow:
    """The flow in a file."""
    return parse_flow(path.stem, path.read_text(encoding="utf-8"))


def parse_flow(name: str, text: str) -> Flow:
    """Parse a flow. Raises a ConfigError that names what is wrong and where."""
    import yaml

    try:
        fields = msgspec.convert(yaml.load(text, yaml.CSafeLoader), _FlowFields)
        return _flow(name, fields)
    except (yaml.YAMLError, msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"flow {name}: {error}") from error


def _flow(name: str, fields: _FlowFields) -> Flow:
    unknown = set(fields.variants) - set(VARIANTS)
    if unknown:
        raise ConfigError(f"variants are {', '.join(VARIANTS)}, not {', '.join(sorted(unknown))}")
    book = _Book(dict(fields.services))
    services = tuple(book.service(service) for service in fields.services)
    steps = tuple(_step(book, number, step) for number, step in enumerate(fields.steps, 1))
    return Flow(
        name=name,
        title=fields.title,
        services=services,
        steps=steps,
        proxy={key: _flag_value(value) for key, value in fields.proxy.items()},
        variants=fields.variants,
        modes=tuple(fields.modes),
        story=" ".join(fields.story.split()),
    )


def _flag_value(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Book:
    """The Services at the step being read; a step may change some of their fields."""

    def __init__(self, services: dict[str, dict[str, object]]) -> None:
        self._services = services

    def service(self, name: str) -> ServiceText:
        return _service(name, self._services[name])

    def change(self, name: str, fields: Mapping[str, object]) -> ServiceText:
        self._services[name] = {**self._services.get(name, {}), **fields}
        return self.service(name)

    def check_known(self, name: str) -> str:
        if name not in self._services:
            known = ", ".join(self._services)
            raise ConfigError(f"there is no service {name!r}; there are: {known}")
        return name


def _service(name: str, raw: Mapping[str, object]) -> ServiceText:
    try:
        fields = msgspec.convert(raw, _ServiceFields)
        return ServiceText(
            name=name,
            ports=tuple(parse_port(port, str(text)) for port, text in fields.ports.items()),
            endpoints=tuple(parse_endpoint(text) for text in fields.endpoints),
            type=fields.type,
            external_policy=fields.external_traffic_policy,
            internal_policy=fields.internal_traffic_policy,
            external_ips=tuple(fields.external_i_ps),
            load_balancer=tuple(fields.load_balancer),
            proxied_load_balancer=tuple(fields.proxied_load_balancer),
            source_ranges=tuple(fields.load_balancer_source_ranges),
            affinity_seconds=fields.affinity_seconds,
            health_check_node_port=fields.health_check_node_port,
            algorithm=fields.algorithm,
            annotations=fields.annotations,
            is_short=fields.short_form,
            allow_sources=tuple(fields.allow_sources),
            deny_sources=tuple(fields.deny_sources),
        )
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"service {name!r}: {error}") from error


def _step(book: _Book, number: int, raw: Mapping[str, object]) -> Step:
    if len(raw) != 1:
        raise ConfigError(f"step {number} must have one verb, has {', '.join(raw) or 'none'}")
    ((verb, value),) = raw.items()
    parser = _VERBS.get(verb)
    if parser is None:
        raise ConfigError(f"step {number}: {verb!r} is none of: {', '.join(_VERBS)}")
    try:
        return parser(book, value)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"step {number} ({verb}): {error}") from error


def _packets(_book: _Book, value: object) -> Packets:
    table = msgspec.convert(value, dict[str, str | dict[str, str]])
    return Packets(tuple(_check(text, fate) for text, fate in table.items()))


def _check(text: str, fate: str | dict[str, str]) -> Check:
    fates = {mode: parse_expected(each) for mode, each in _by_mode(text, fate).items()}
    return Check(parse_packet(text), fates)


def _by_mode(text: str, fate: str | dict[str, str]) -> Mapping[str, str]:
    by_mode = {OTHERWISE: fate} if isinstance(fate, str) else fate
    if OTHERWISE not in by_mode:
        raise ConfigError(f"{text!r} says nothing of other modes: add {OTHERWISE!r}")
    return by_mode


def _connect(_book: _Book, value: object) -> Connect:
    table = msgspec.convert(value, dict[str, str])
    return Connect({name: parse_packet(text) for name, text in table.items()})


def _connections(_book: _Book, value: object) -> Connections:
    table = msgspec.convert(value, dict[str, str | dict[str, str]])
    return Connections(
        {
            name: {mode: parse_becomes(each) for mode, each in _by_mode(name, fate).items()}
            for name, fate in table.items()
        }
    )


def _apply(book: _Book, value: object) -> Apply:
    changes = msgspec.convert(value, dict[str, dict[str, object]])
    return Apply(tuple(book.change(name, fields) for name, fields in changes.items()))


def _endpoints(book: _Book, value: object) -> Apply:
    lists = msgspec.convert(value, dict[str, list[str]])
    changes = [(book.check_known(name), {"endpoints": names}) for name, names in lists.items()]
    return Apply(tuple(book.change(name, fields) for name, fields in changes))


def _hosts(book: _Book, value: object) -> tuple[str, tuple[str, ...]]:
    table = msgspec.convert(value, dict[str, list[str]])
    if len(table) != 1:
        raise ConfigError(f"one service is needed, there are {', '.join(table) or 'none'}")
    ((name, hosts),) = table.items()
    return book.check_known(name), tuple(hosts)


_VERBS: Mapping[str, Callable[[_Book, object], Step]] = {
    "packets": _packets,
    "apply": _apply,
    "endpoints": _endpoints,
    "remove": lambda book, value: Remove(book.check_known(str(value))),
    "hang up": lambda book, value: HangUp(*_hosts(book, value)),
    "listen again": lambda book, value: Listen(*_hosts(book, value)),
    "restart proxy": lambda _, value: RestartProxy(str(value)),
    "stop proxy": lambda _, value: StopProxy(str(value)),
    "start proxy": lambda _book, _value: StartProxy(),
    "start load": lambda _, value: StartLoad(parse_packet(str(value))),
    "stop load": lambda _, value: StopLoad(parse_expected(str(value)).answers[0].hosts),
    "connect": _connect,
    "connections": _connections,
    "wait": lambda _, value: Wait(msgspec.convert(value, float)),
    "health check": lambda _, value: msgspec.convert(value, HealthCheck),
    "clean up": lambda _book, _value: CleanUp(),
    "foreign rules": lambda _book, _value: ForeignRules(),
    "switch mode": lambda _, value: SwitchMode(msgspec.convert(value, dict[str, str])),
    "hand over": lambda _, value: SwitchMode(
        msgspec.convert(value, dict[str, str]), is_overlapping=True
    ),
}
