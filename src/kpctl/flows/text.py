"""The small sentences of a flow file: packets, fates, ports and endpoints.

Each is parsed into a frozen value. An error quotes the sentence and names what was expected. `flow`
reads the file around them.

    packet     client-a -> web:http          FROM[@SOURCE-PORT] -> PLACE:PORT[/PROTOCOL]
    fate       dropped
               web-a1 or web-b1 sees client-a; web-b2 sees node-a, evenly
               web-a1 or web-b1, 40 times, as 3 to 1, in turn
    port       80 -> 8080/TCP, node port 30080
    endpoint   web-a1 (terminating, zone zone-a, weight 3)
"""

from __future__ import annotations

import re

import msgspec

from kpctl.lab.probe import Fate
from kubeproxy.errors import ConfigError
from kubeproxy.facts.ids import Protocol

_PACKET = re.compile(
    r"(?P<source>[\w-]+)(?:@(?P<source_port>\d+))?\s*->\s*"
    r"(?P<place>[\w-]+):(?P<port>[\w-]+)(?:/(?P<protocol>TCP|UDP|SCTP))?(?:\s*\((?P<note>[^)]*)\))?"
)
_PORT = re.compile(
    r"(?P<port>\d+)(?:/(?P<protocol>TCP|UDP|SCTP))?\s*->\s*(?P<target>\d+)"
    r"(?:,\s*node port (?P<node_port>\d+))?"
)
_ENDPOINT = re.compile(r"(?P<host>[\w-]+)(?:\s*\((?P<traits>[^)]*)\))?")
_SEES = re.compile(r"(?P<hosts>[\w-]+(?: or [\w-]+)*)(?: sees (?P<seen>[\w-]+))?")
_STILL = re.compile(r"still ([\w-]+)")
_NOT_ONLY = re.compile(r"not only ([\w-]+)")
_TIMES = re.compile(r"(\d+) times")
_SHARES = re.compile(r"as (\d+(?: to \d+)+)")
_PLAIN_FATES = tuple(f.value for f in Fate if f not in (Fate.ANSWERED, Fate.BROKEN))
_MODIFIERS = ("evenly", "in turn", "sticky", "as before")
_MANY = 12


class Packet(msgspec.Struct, frozen=True):
    """A packet's source and destination. `port` is a port's name or its number as text."""

    text: str
    source: str
    place: str
    port: str
    protocol: Protocol | None = None
    source_port: int = 0


class Responders(msgspec.Struct, frozen=True):
    """Hosts that may answer, and the host whose address they must see (empty: any)."""

    hosts: tuple[str, ...]
    seen: str = ""


class Expected(msgspec.Struct, frozen=True):
    """What must become of a packet.

    `is_even`: the answers spread evenly over the hosts, or as `shares`, which are in the order of
    the hosts as written. `is_in_turn`: exactly so, not only as chance allows. `is_sticky`: all
    probes meet one host, which is remembered. `is_as_before`: they meet the host remembered for the
    same packet. `still`: they meet this host, because the kernel still tracks an earlier flow.
    `not_only`: they meet others than this host too, because it does not any more.
    """

    fate: Fate
    answers: tuple[Responders, ...] = ()
    times: int = 1
    is_even: bool = False
    is_in_turn: bool = False
    shares: tuple[int, ...] = ()
    is_sticky: bool = False
    is_as_before: bool = False
    still: str = ""
    not_only: str = ""

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(host for answers in self.answers for host in answers.hosts)

    @property
    def weights(self) -> dict[str, int]:
        """The share of each host; 1 where none is given."""
        hosts = [host for answers in self.answers for host in answers.hosts]
        return dict(zip(hosts, self.shares or (1,) * len(hosts), strict=True))

    def seen_by(self, host: str) -> str:
        """The host whose address this one must see; empty if it does not matter."""
        return next((a.seen for a in self.answers if host in a.hosts), "")


class PortText(msgspec.Struct, frozen=True):
    """One port of a Service."""

    name: str
    port: int
    target: int
    protocol: Protocol = Protocol.TCP
    node_port: int = 0


class EndpointText(msgspec.Struct, frozen=True):
    """One endpoint: the host it is, its conditions and hints, and target ports of its own."""

    host: str
    is_ready: bool = True
    is_serving: bool = True
    is_terminating: bool = False
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    targets: tuple[tuple[str, int], ...] = ()
    weight: int = 1


def parse_packet(text: str) -> Packet:
    """Parse `client-a -> web:http`. A note in parentheses makes a repeated packet unique."""
    found = _match(
        _PACKET, text, "a packet is FROM -> PLACE:PORT, for example client-a -> web:http"
    )
    protocol = found["protocol"]
    return Packet(
        text=text,
        source=found["source"],
        place=found["place"],
        port=found["port"],
        protocol=Protocol(protocol) if protocol else None,
        source_port=int(found["source_port"] or 0),
    )


def parse_expected(text: str) -> Expected:
    """Parse `rejected`, or the hosts that answer and what they see, with modifiers after commas."""
    body, *words = (part.strip() for part in text.split(","))
    modifiers = _Modifiers(words, text)
    is_plain = body in _PLAIN_FATES
    answers = () if is_plain else tuple(_answers(part, text) for part in body.split(";"))
    count = sum(len(each.hosts) for each in answers)
    if modifiers.shares and len(modifiers.shares) != count:
        raise ConfigError(f"{text!r} has {len(modifiers.shares)} shares for {count} hosts")
    return Expected(
        fate=Fate(body) if is_plain else Fate.ANSWERED,
        answers=answers,
        times=modifiers.times,
        is_even="evenly" in words or bool(modifiers.shares),
        is_in_turn="in turn" in words,
        shares=modifiers.shares,
        is_sticky="sticky" in words,
        is_as_before="as before" in words,
        still=modifiers.still,
        not_only=modifiers.not_only,
    )


def _answers(part: str, text: str) -> Responders:
    fates = ", ".join(_PLAIN_FATES)
    found = _match(_SEES, part.strip(), f"{text!r} is neither one of {fates} nor A or B sees C")
    return Responders(tuple(found["hosts"].split(" or ")), found["seen"] or "")


class _Modifiers:
    """What follows the commas. Implies several probes where one would prove nothing."""

    def __init__(self, words: list[str], text: str) -> None:
        self.times = _MANY if {"sticky", "as before"} & set(words) else 1
        self.still = self.not_only = ""
        self.shares: tuple[int, ...] = ()
        for word in words:
            if word not in _MODIFIERS and not self._take(word):
                more = ("N times", "as N to M", "still HOST", "not only HOST")
                known = ", ".join((*_MODIFIERS, *more))
                raise ConfigError(f"{word!r} in {text!r} is none of: {known}")

    def _take(self, word: str) -> bool:
        if found := _TIMES.fullmatch(word):
            self.times = int(found[1])
        elif found := _SHARES.fullmatch(word):
            self.shares = tuple(map(int, found[1].split(" to ")))
        elif found := _STILL.fullmatch(word):
            self.still = found[1]
        elif found := _NOT_ONLY.fullmatch(word):
            self.not_only = found[1]
        return found is not None


def parse_port(name: str, text: str) -> PortText:
    """Parse `80 -> 8080` or `53/UDP -> 5353, node port 30053`. The name `-` stands for none."""
    expected = "a port is PORT[/PROTOCOL] -> TARGET[, node port NUMBER]"
    found = _match(_PORT, str(text), expected)
    return PortText(
        name="" if name == "-" else name,
        port=int(found["port"]),
        target=int(found["target"]),
        protocol=Protocol(found["protocol"] or "TCP"),
        node_port=int(found["node_port"] or 0),
    )


def parse_endpoint(text: str) -> EndpointText:
    """Parse `web-a1`, `web-a1 (not ready)` or `web-a1 (terminating, zone zone-a, http 9090)`."""
    found = _match(_ENDPOINT, text, "an endpoint is HOST or HOST (TRAIT, TRAIT)")
    traits = [trait.strip() for trait in (found["traits"] or "").split(",") if trait.strip()]
    plain = {trait for trait in traits if trait in _CONDITIONS}
    pairs = [_pair(trait, text) for trait in traits if trait not in plain]
    return EndpointText(
        host=found["host"] or "",
        is_ready=not plain & {"not ready", "terminating", "not serving"},
        is_serving="not serving" not in plain,
        is_terminating="terminating" in plain,
        zones=tuple(value for key, value in pairs if key == "zone"),
        nodes=tuple(value for key, value in pairs if key == "node"),
        targets=tuple((key, int(value)) for key, value in pairs if key not in _NOT_PORTS),
        weight=next((int(value) for key, value in pairs if key == "weight"), 1),
    )


_CONDITIONS = ("not ready", "terminating", "not serving")
_NOT_PORTS = ("zone", "node", "weight")


def _pair(trait: str, text: str) -> tuple[str, str]:
    key, _, value = trait.partition(" ")
    if not value or (key not in ("zone", "node") and not value.isdigit()):
        known = ", ".join(_CONDITIONS)
        raise ConfigError(
            f"{trait!r} in {text!r} is no trait of an endpoint; there are: {known},"
            " zone NAME, node NAME, weight NUMBER, PORT-NAME NUMBER"
        )
    return key, value


def _match(pattern: re.Pattern[str], text: str, expected: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} cannot be read: {expected}")
    return found
