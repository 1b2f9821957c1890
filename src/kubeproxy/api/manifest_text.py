"""The objects in a manifest's text: YAML or JSON, one document or many, lists of any kind. Pure.

Objects of kinds that the proxy does not watch are passed over. What an API server would fill in (a
namespace, port names, the other spelling of the cluster IP) is filled in here. An object that
cannot be used is named with the reason and the remedy, and the others of its file stay usable. A
text that is no manifest at all raises `ObjectError`. Services of the short form (`short_form`) may
stand beside objects, in documents of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from kubeproxy.api.json_text import NotJson, Parsed, parse_json
from kubeproxy.api.manifest_fields import unknown_fields, unread_annotations
from kubeproxy.api.manifest_lines import Lines, path_in
from kubeproxy.api.objects import SERVICE_NAME_LABEL, EndpointSlice, Service, ServiceSpec
from kubeproxy.api.short_form import (
    NAMESPACE,
    ShortProblem,
    ShortService,
    is_short_form,
    parse_services,
)
from kubeproxy.api.short_objects import service_objects
from kubeproxy.api.source import Kind, Object, Undecodable
from kubeproxy.errors import ObjectError
from kubeproxy.facts.address import parse_ip
from kubeproxy.go.yaml import YamlError, parse_documents

_KINDS = {kind.value: kind for kind in Kind}
_GROUPS = {
    Kind.SERVICE: "v1",
    Kind.NODE: "v1",
    Kind.ENDPOINT_SLICE: "discovery.k8s.io/",
    Kind.SERVICE_CIDR: "networking.k8s.io/",
}
_NAMESPACED = frozenset({Kind.SERVICE, Kind.ENDPOINT_SLICE})
_LONGEST_SHOWN = 60
_Value = TypeVar("_Value")

Key: TypeAlias = tuple[Kind, str, str]
"""Kind, namespace, name."""
Path: TypeAlias = tuple[str | int, ...]


class Manifest(msgspec.Struct, frozen=True):
    """The objects of one file."""

    objects: Mapping[Key, Object] = {}
    problems: tuple[Undecodable, ...] = ()
    """The objects that cannot be used."""
    notes: tuple[str, ...] = ()
    """What stands in the file and has no effect: unknown fields, ignored kinds."""
    target_ports: Mapping[Key, Mapping[str, int]] = {}
    """Each Service's numeric target ports by the name of their port."""
    shorts: Mapping[str, Short] = {}
    """Services of the short form by name. Their objects are not among `objects`."""
    lines: Mapping[Undecodable, int] = {}
    """On which lines problems stand, as far as that is known."""


class Short(msgspec.Struct, frozen=True):
    """A Service of the short form. `objects` is empty where they depend on host names."""

    service: ShortService
    objects: Mapping[Key, Object] = {}

    @classmethod
    def of(cls, service: ShortService) -> Short:
        return cls(service, {} if service.host_names else service_objects(service, {}))


class _Source(msgspec.Struct, frozen=True):
    """A document; `number` counts those of the text, and is -1 where lines are not known."""

    value: object
    number: int = -1
    duplicates: tuple[str, ...] = ()


class _Reading:
    """What was found so far in one file. Dictionaries keep the order and name things once."""

    def __init__(self, text: str) -> None:
        self.shorts: dict[str, Short] = {}
        self.lines: dict[Undecodable, int] = {}
        self.text_lines = Lines(text)
        self.objects: dict[Key, Object] = {}
        self.problems: dict[Undecodable, None] = {}
        self.notes: dict[str, None] = {}
        self.target_ports: dict[Key, Mapping[str, int]] = {}

    def result(self) -> Manifest:
        return Manifest(
            objects=self.objects,
            problems=tuple(self.problems),
            notes=tuple(self.notes),
            target_ports=self.target_ports,
            shorts=self.shorts,
            lines=self.lines,
        )

    def reject(self, problem: Undecodable, document: int, path: Path) -> None:
        """Note an object that cannot be used, and where it stands."""
        if problem in self.problems:
            return
        self.problems[problem] = None
        if line := self.text_lines.find(document, path):
            self.lines[problem] = line


def decode_text(data: bytes) -> str:
    """Return the text of a file. Raises ObjectError for other encodings than UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        text = f"not text in UTF-8 (byte {error.start}); save the file in this encoding"
        raise ObjectError(text) from error


def parse_manifest(text: str) -> Manifest:
    """Return the objects of watched kinds in this text. Raises ObjectError if it is no manifest."""
    reading = _Reading(text)
    for document in _documents(text, reading):
        if is_short_form(document.value):
            _take_short(document, reading)
            continue
        for path, item in _flatten(document.value):
            _take(item, reading, document.number, path)
    return reading.result()


def _take_short(document: _Source, reading: _Reading) -> None:
    """Take the Services of the short form. Raises ObjectError if none of them can be found."""
    assert isinstance(document.value, dict)
    for text in document.duplicates:
        raise ObjectError(f"{text}; remove one of them")
    try:
        for found in parse_services(document.value):
            if isinstance(found, ShortProblem):
                name = f"{NAMESPACE}/{str(found.path[1])[:_LONGEST_SHOWN]}"
                problem = Undecodable(Kind.SERVICE, name, str(found))
                reading.reject(problem, document.number, found.path)
            elif found.name in reading.shorts:
                text = "an earlier document of the file has a Service of this name"
                problem = Undecodable(Kind.SERVICE, f"{NAMESPACE}/{found.name}", text)
                reading.reject(problem, document.number, ("services", found.name))
            else:
                reading.shorts[found.name] = Short.of(found)
    except ShortProblem as problem:
        line = reading.text_lines.find(document.number, problem.path)
        where = f"line {line}: " if line else ""
        raise ObjectError(f"{where}{'.'.join(map(str, problem.path))}: {problem}") from problem


class _JsonList(msgspec.Struct):
    """The outside of a `List`, with its items still as text."""

    kind: str
    items: list[msgspec.Raw]


_JSON_LIST = msgspec.json.Decoder(_JsonList)
_JSON = msgspec.json.Decoder(object)


def _documents(text: str, reading: _Reading) -> Iterable[_Source]:
    """Return the documents of a file. JSON is YAML too, but a JSON parser is much faster."""
    if not text.lstrip().startswith(("{", "[")):
        return _yaml_documents(text, "not YAML", reading)
    try:
        return _json_documents(text.encode("utf-8", "surrogatepass"), reading)
    except NotJson as error:
        problem = f"neither JSON: {error}, nor YAML"
        # What ends too early as JSON does so as YAML: the slow parser would find nothing else.
        if "truncated" in str(error):
            raise ObjectError(problem) from error
        return _yaml_documents(text, problem, reading)


def _json_documents(data: bytes, reading: _Reading) -> Iterable[_Source]:
    """Return the one document, or the items of a list one by one, which saves most memory."""
    try:
        found = _noted(parse_json(_JSON_LIST, data), reading)
        is_list = found.kind.endswith("List")
    except NotJson:
        is_list = False
    if not is_list:
        return [_Source(_noted(parse_json(_JSON, data), reading))]
    return (_Source({"kind": found.kind, "items": [_json_item(item)]}) for item in found.items)


def _json_item(item: msgspec.Raw) -> object:
    try:
        return parse_json(_JSON, item).value
    except NotJson as error:
        raise ObjectError(f"not JSON: {error}") from error


def _noted(parsed: Parsed[_Value], reading: _Reading) -> _Value:
    if parsed.is_repaired:
        reading.notes.setdefault("a field is nested too deeply and is ignored")
    return parsed.value


def _yaml_documents(text: str, problem: str, reading: _Reading) -> list[_Source]:
    try:
        found = [
            _Source(document.value, number, document.duplicates)
            for number, document in enumerate(parse_documents(text))
            if document.value is not None
        ]
    except YamlError as error:
        raise ObjectError(f"{problem}: {error}") from error
    if not found:
        raise ObjectError("the file is empty")
    for document in found:
        reading.notes |= dict.fromkeys(document.duplicates)
    return found


def _flatten(document: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield the objects of a document: itself, the elements of a list, the items of a `List`."""
    if isinstance(document, list):
        for index, element in enumerate(document):
            yield from _flatten(element, (*path, index))
    elif isinstance(document, dict) and _text(document.get("kind")).endswith("List"):
        item_kind = _text(document["kind"]).removesuffix("List")
        items = document.get("items") or []
        if not isinstance(items, list):
            raise ObjectError(f"items of a {item_kind[:_LONGEST_SHOWN]}List are not a list")
        for index, element in enumerate(items):
            yield from _flatten(
                {"kind": item_kind, **element} if isinstance(element, dict) else element,
                (*path, "items", index),
            )
    else:
        yield path, document


def _take(item: object, reading: _Reading, document: int, path: Path) -> None:
    if not isinstance(item, dict) or not item.get("kind"):
        raise ObjectError(f"expected an object with a kind, or services:, found {_describe(item)}")
    kind = _KINDS.get(_text(item["kind"]))
    if kind is None or not _is_of_group(kind, item):
        reading.notes.setdefault(_ignored(item))
        return
    name = _name(item)
    try:
        decoded = _decode(kind, item)
        reading.notes |= dict.fromkeys(_notes(kind, name, item, decoded))
    # Whatever one object makes our code raise ends at that object.
    except Exception as error:
        reason = str(error) or type(error).__name__
        reading.reject(Undecodable(kind, name, reason), document, (*path, *path_in(reason)))
        return
    key = (kind, decoded.metadata.namespace, decoded.metadata.name)
    if key in reading.objects:
        text = "the file holds another object of this name"
        reading.reject(Undecodable(kind, name, text), document, path)
        return
    reading.objects[key] = decoded
    if kind is Kind.SERVICE and (targets := _target_ports(item)):
        reading.target_ports[key] = targets


def _text(value: object) -> str:
    """Return a text, and an empty one for anything else: a list may be large, even endless."""
    return value if isinstance(value, str) else ""


def _describe(item: object) -> str:
    """Name a value in few words, however large it is."""
    match item:
        case dict():
            fields = ", ".join(repr(str(name)[:_LONGEST_SHOWN]) for name in list(item)[:5])
            return f"an object with {f'the fields {fields}' if fields else 'no fields'}"
        case list():
            return f"a list of {len(item)} elements"
        case str():
            return repr(item[:_LONGEST_SHOWN])
        case _:
            return str(item)[:_LONGEST_SHOWN]


def _ignored(item: Mapping[str, object]) -> str:
    kind, version = _text(item["kind"]), _text(item.get("apiVersion"))
    advice = "; write an EndpointSlice instead" if kind == "Endpoints" else ""
    of = f" of {version[:_LONGEST_SHOWN]}" if version else ""
    return f"kind {kind[:_LONGEST_SHOWN]}{of} is ignored{advice}"


def _is_of_group(kind: Kind, item: Mapping[str, object]) -> bool:
    """Is it not another group's kind of the same name (Knative's Service)? No version passes."""
    version = item.get("apiVersion", _GROUPS[kind])
    return _text(version).startswith(_GROUPS[kind])


def _name(item: Mapping[str, object]) -> str:
    meta = item.get("metadata")
    if not isinstance(meta, dict):
        return ""
    namespace, name = _text(meta.get("namespace"))[:80], _text(meta.get("name"))[:80]
    return f"{namespace}/{name}" if namespace else name


def _decode(kind: Kind, item: Mapping[str, object]) -> Object:
    """Decode an object and fill in what an API server would. Raises ValueError, ObjectError."""
    decoded = msgspec.convert(item, kind.object_type)
    _require(decoded.metadata.name, "metadata.name is missing")
    if kind in _NAMESPACED and not decoded.metadata.namespace:
        decoded = replace(decoded, metadata=replace(decoded.metadata, namespace="default"))
    match decoded:
        case Service():
            return replace(decoded, spec=_complete_spec(decoded.spec))
        case EndpointSlice():
            return _complete_slice(decoded)
    return decoded


def _require(value: object, message: str) -> None:
    if not value:
        raise ObjectError(message)


def _complete_spec(spec: ServiceSpec) -> ServiceSpec:
    """Return the spec with both spellings of its cluster IPs, and with their families."""
    if spec.type == "ExternalName":
        return spec
    ips = spec.cluster_ips or ([spec.cluster_ip] if spec.cluster_ip else [])
    _require(
        ips,
        "spec.clusterIP is missing: without a cluster there is nothing that allocates one, so write"
        " the address you want the Service to have (or None for a headless Service)",
    )
    first = spec.cluster_ip or ips[0]
    if first != ips[0]:
        raise ObjectError("spec.clusterIP is not the first of spec.clusterIPs: write it in one")
    families = spec.ip_families
    parsed = [parse_ip(ip) for ip in ips]
    if not families and len(ips) > 1:
        families = [found[0].value for found in parsed if found is not None]
    return replace(spec, cluster_ip=first, cluster_ips=ips, ip_families=families)


def _complete_slice(found: EndpointSlice) -> EndpointSlice:
    """Return the slice with names for its ports: a single port needs none."""
    _require(
        found.metadata.labels and found.metadata.labels.service_name,
        f"label {SERVICE_NAME_LABEL} is missing: it says which Service the slice serves",
    )
    ports = found.ports or []
    if all(port.name is not None for port in ports):
        return found
    return replace(found, ports=[replace(port, name=port.name or "") for port in ports])


def _notes(kind: Kind, name: str, item: Mapping[str, object], decoded: Object) -> Iterator[str]:
    """Yield what has no effect in a usable object."""
    for path in unknown_fields(kind, item):
        yield f'{kind.value} {name}: unknown field "{path}" is ignored'
    for annotation in unread_annotations(kind, item):
        yield f'{kind.value} {name}: annotation "{annotation}" means nothing here and is ignored'
    if isinstance(decoded, Service):
        spec = decoded.spec
        for family in (spec.ip_families or [])[len(spec.cluster_ips or []) :]:
            yield (
                f"Service {name}: spec.ipFamilies has {family[:_LONGEST_SHOWN]}, but"
                " spec.clusterIPs has no address of it"
            )


def _target_ports(item: Mapping[str, object]) -> Mapping[str, int]:
    """Return the numeric target ports of a Service that was decoded, by the names of its ports."""
    spec = item.get("spec")
    ports = spec.get("ports") if isinstance(spec, dict) else None
    return {
        _text(port.get("name")): port["targetPort"]
        for port in ports or ()
        if isinstance(port, dict) and type(port.get("targetPort")) is int
    }
