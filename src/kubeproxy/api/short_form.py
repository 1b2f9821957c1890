"""The short form of `--manifests`: Services for people who know no Kubernetes. Pure.

    services:
      web:
        listen: 198.51.100.1:80
        to: [192.0.2.11:8080, 192.0.2.12:8080 weight 2]
        check: http /healthz

Strict: a key that is not known, an address that cannot be used, a thing that is there twice are
problems of that Service, each with its place and the remedy; the other Services stay usable. Which
objects a Service becomes is left to `short_objects`, the addresses of host names to `names`.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from msgspec import Struct

from kubeproxy.api import objects
from kubeproxy.api.annotations import HEAVIEST, parse_algorithm, parse_draining, parse_health_check
from kubeproxy.errors import ObjectError
from kubeproxy.facts.address import family_of, join_host_port, parse_ip
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.go.hostport import split_host_port

KEY = "services"
NAMESPACE = "default"
MOST_LISTENS = 100
MOST_BACKENDS = 1000

OPTIONS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "algorithm": ("algorithm", parse_algorithm),
    "check": ("health_check", parse_health_check),
    "draining": ("draining", parse_draining),
}
"""Keys with the value of an annotation: its field in `ServiceAnnotations`, and what parses it."""

_KEYS = ("listen", "to", *OPTIONS)
_LONGEST_SHOWN = 60
_T = TypeVar("_T")
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?")
_HOST = re.compile(r"(?=.{1,253}$)(?:[a-z0-9_](?:[-a-z0-9_]{0,61}[a-z0-9_])?\.)*[a-z][-a-z0-9]*")
"""The last label begins with a letter: 192.0.2.300 is a mistake, not a name."""

Path: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a place in a document."""


class Listen(Struct, frozen=True, order=True):
    """Where connections arrive."""

    address: str
    port: int
    protocol: Protocol = Protocol.TCP

    def __str__(self) -> str:
        suffix = "" if self.protocol is Protocol.TCP else f"/{self.protocol.value.lower()}"
        return f"{join_host_port(self.address, self.port)}{suffix}"


class Backend(Struct, frozen=True):
    """Where connections go: an address, or a host name and all its addresses."""

    host: str
    port: int
    weight: int = 1

    @property
    def is_name(self) -> bool:
        return parse_ip(self.host) is None

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


class ShortService(Struct, frozen=True):
    """One Service of the short form, valid."""

    name: str
    listen: tuple[Listen, ...]
    to: tuple[Backend, ...]
    annotations: objects.ServiceAnnotations = objects.ServiceAnnotations()

    @property
    def host_names(self) -> frozenset[str]:
        return frozenset(backend.host for backend in self.to if backend.is_name)


class ShortProblem(ObjectError):
    """Part of a Service cannot be used. `path` leads to it from the top of the document."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"{_dotted(path[2:])}: {text}" if len(path) > 2 else text)
        self.path = path


def is_short_form(document: object) -> bool:
    return isinstance(document, dict) and KEY in document and "kind" not in document


def parse_services(document: Mapping[str, object]) -> Iterator[ShortService | ShortProblem]:
    """Yield each Service of a document, or what is wrong with it. The name is `path[1]` of that.

    Raises ShortProblem if the document itself is wrong.
    """
    for key in document:
        if key != KEY:
            raise ShortProblem((key,), _unknown(key, (KEY,)))
    services = document[KEY]
    if not isinstance(services, dict):
        raise ShortProblem((KEY,), "is no mapping of names to Services; write services: {web: …}")
    claimed: dict[Listen, str] = {}
    for name, value in services.items():
        try:
            found = _service(name, value)
            _claim(found, claimed)
        except ShortProblem as problem:
            yield problem
        else:
            yield found


def _claim(service: ShortService, claimed: dict[Listen, str]) -> None:
    for listen in service.listen:
        if listen in claimed:
            text = f"{listen} is that of {claimed[listen]} already; one of them needs another"
            raise ShortProblem((KEY, service.name, "listen"), text)
    claimed |= dict.fromkeys(service.listen, service.name)


def _service(name: str, value: object) -> ShortService:
    place = (KEY, name)
    if not _NAME.fullmatch(name):
        text = "a name has up to 50 small letters, digits and dashes, and begins with a letter"
        raise ShortProblem(place, f"{_shown(name)} is no name: {text}")
    if not isinstance(value, dict):
        raise ShortProblem(place, "is no mapping; write at least listen: and to:")
    for key in value:
        if key not in _KEYS:
            raise ShortProblem((*place, key), _unknown(key, _KEYS))
    for key in ("listen", "to"):
        if not value.get(key):
            raise ShortProblem(place, f"{key}: is missing or empty; {_EXAMPLES[key]}")
    service = ShortService(
        name=name,
        listen=_each((*place, "listen"), value["listen"], _listen, MOST_LISTENS),
        to=_each((*place, "to"), value["to"], _backend, MOST_BACKENDS),
        annotations=_annotations(place, value),
    )
    _check_families(place, service)
    _check_weights(place, service)
    return service


_EXAMPLES = {
    "listen": "write where connections arrive, as in listen: 198.51.100.1:80",
    "to": "write where they go, as in to: [192.0.2.11:8080, 192.0.2.12:8080 weight 2]",
}


def _annotations(place: Path, value: Mapping[str, object]) -> objects.ServiceAnnotations:
    found: dict[str, str] = {}
    for key, (field, parse) in OPTIONS.items():
        if key not in value:
            continue
        text = _text((*place, key), value[key])
        try:
            parse(text)
        except ValueError as error:
            raise ShortProblem((*place, key), str(error)) from None
        found[field] = text
    return objects.ServiceAnnotations(**found)


# --- values ---


def _each(place: Path, value: object, parse: Callable[[str], _T], most: int) -> tuple[_T, ...]:
    """Parse one text, or a list of them."""
    texts = value if isinstance(value, list) else [value]
    if len(texts) > most:
        raise ShortProblem(place, f"has {len(texts)} entries, the limit is {most}")
    found: dict[_T, None] = {}
    for index, text in enumerate(texts):
        where = (*place, index) if isinstance(value, list) else place
        try:
            parsed = parse(_text(where, text))
        except ValueError as error:
            raise ShortProblem(where, str(error)) from None
        if parsed in found:
            raise ShortProblem(where, f"{parsed} is there twice; remove one")
        found[parsed] = None
    return tuple(found)


def _text(place: Path, value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        text = 'is a list; an IPv6 address needs quotes, as in "[2001:db8::1]:80"'
        raise ShortProblem(place, text)
    raise ShortProblem(place, f"{_shown(value)} is no text; write it in quotes")


def _listen(text: str) -> Listen:
    where, _, suffix = text.partition("/")
    protocol = _PROTOCOLS.get(suffix.lower()) if "/" in text else Protocol.TCP
    if protocol is None:
        raise ValueError(f"{_shown(suffix)} is none of {', '.join(_PROTOCOLS)}")
    host, port = _split(where, "198.51.100.1:80")
    parsed = parse_ip(host)
    if parsed is None:
        hint = "; for every address of the host, list them" if host in ("", "*") else ""
        raise ValueError(f"{_shown(host)} is no address; write one, as in 198.51.100.1:80{hint}")
    _require_usable(parsed[1])
    return Listen(parsed[1], port, protocol)


_PROTOCOLS = {protocol.value.lower(): protocol for protocol in Protocol}


def _backend(text: str) -> Backend:
    match text.split():
        case [where]:
            weight = 1
        case [where, "weight", number]:
            weight = _number(number, 0, HEAVIEST, "weight")
        case _:
            raise ValueError(
                f"{_shown(text)} is not of the form ADDRESS:PORT, or ADDRESS:PORT weight NUMBER"
            )
    host, port = _split(where, "192.0.2.11:8080")
    parsed = parse_ip(host)
    if parsed is not None:
        _require_usable(parsed[1])
        if ipaddress.ip_address(parsed[1]).is_link_local:  # the plan would refuse it
            raise ValueError(f"{parsed[1]} is a link-local address; use another address")
        return Backend(parsed[1], port, weight)
    name = host.lower().removesuffix(".")
    if not _HOST.fullmatch(name):
        raise ValueError(f"{_shown(host)} is no address and no host name")
    return Backend(name, port, weight)


def _split(text: str, example: str) -> tuple[str, int]:
    try:
        host, port = split_host_port(text)
    except ValueError:
        if parse_ip(text) is not None and ":" in text:
            hint = f'write "[{text}]:PORT", in quotes'
        elif ":" in text.partition(":")[2]:
            hint = 'an IPv6 address is written in brackets and quotes: "[2001:db8::1]:80"'
        else:
            hint = f"write address and port, as in {example}"
        raise ValueError(f"{_shown(text)} has no port that can be found; {hint}") from None
    return host, _number(port, 1, 65535, "port")


def _number(text: str, least: int, most: int, what: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else -1
    if not least <= number <= most:
        raise ValueError(f"{what} {_shown(text)} is not a number within {least} to {most}")
    return number


def why_unusable(address: str) -> str:
    """Why packets of others cannot be forwarded from or to an address; empty if they can."""
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified or parsed.is_multicast or address == "255.255.255.255":
        return "is not the address of one host"
    if parsed.is_loopback:
        return "is reached from its own host only; use an address of the network"
    if parsed.version == 6 and parsed.is_link_local:
        return "needs an interface beside it; use another address"
    return ""


def _require_usable(address: str) -> None:
    if reason := why_unusable(address):
        raise ValueError(f"{address} {reason}")


# --- the whole ---


def _check_families(place: Path, service: ShortService) -> None:
    """Packets are translated within one family: both sides need addresses of it."""
    listens = {family_of(listen.address) for listen in service.listen}
    targets = {family_of(backend.host) for backend in service.to if not backend.is_name}
    for family in Family:
        if family in targets and family not in listens:
            text = f"{family.value} is never used; listen: needs an address of {family.value}"
            raise ShortProblem((*place, "to"), text)
        if family in listens and family not in targets and not service.host_names:
            text = f"{family.value} has nowhere to go; to: needs an address of {family.value}"
            raise ShortProblem((*place, "listen"), text)


def _check_weights(place: Path, service: ShortService) -> None:
    weights: dict[str, int] = {}
    seen: set[str] = set()
    for index, backend in enumerate(service.to):
        where = (*place, "to", index)
        if str(backend) in seen:
            raise ShortProblem(where, f"{backend} is there twice; write it once, with a weight")
        seen.add(str(backend))
        if weights.setdefault(backend.host, backend.weight) != backend.weight:
            text = f"{backend.host} has another weight before; a host has one for all its ports"
            raise ShortProblem(where, text)


def _unknown(key: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
    return f"there is no such key; {hint}"


def _shown(value: object) -> str:
    return repr(value[:_LONGEST_SHOWN]) if isinstance(value, str) else str(value)[:_LONGEST_SHOWN]


def _dotted(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part[:_LONGEST_SHOWN]}"
    return text.removeprefix(".")
