"""The objects in a manifest's text: YAML or JSON, one document or many, lists of any kind. Pure.

Objects of kinds that the proxy does not watch are passed over. An object that cannot be used is
named with the reason and the remedy, and the others of its file stay usable. A text that is no
manifest at all raises `ObjectError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

import msgspec

from kubeproxy.api.objects import SERVICE_NAME_LABEL
from kubeproxy.api.source import Kind, Object, Undecodable
from kubeproxy.errors import ObjectError

_KINDS = {kind.value: kind for kind in Kind}
_GROUPS = {
    Kind.SERVICE: "v1",
    Kind.NODE: "v1",
    Kind.ENDPOINT_SLICE: "discovery.k8s.io/",
    Kind.SERVICE_CIDR: "networking.k8s.io/",
}
_NAMESPACED = frozenset({Kind.SERVICE, Kind.ENDPOINT_SLICE})

Key: TypeAlias = tuple[Kind, str, str]
"""Kind, namespace, name."""


class Manifest(msgspec.Struct, frozen=True):
    """The objects of one file, and in `problems` those that cannot be used."""

    objects: Mapping[Key, Object] = {}
    problems: tuple[Undecodable, ...] = ()


def parse_manifest(text: str) -> Manifest:
    """Return the objects of watched kinds in this text. Raises ObjectError if it is no manifest."""
    try:
        return _parse(text)
    except msgspec.DecodeError as error:
        raise ObjectError(f"not JSON: {error}") from error
    except RecursionError:
        raise ObjectError("it is nested too deeply, or contains itself") from None


def _parse(text: str) -> Manifest:
    found: dict[Key, Object] = {}
    problems: list[Undecodable] = []
    for document in _documents(text):
        for item in _flatten(document):
            _take(item, found, problems)
    return Manifest(found, tuple(problems))


def _documents(text: str) -> Iterable[object]:
    """Return the documents of a file. JSON is YAML too, but a JSON parser is much faster."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return _json_documents(text)
        except msgspec.DecodeError as error:
            return _yaml_documents(text, f"neither JSON: {error}, nor YAML")
    return _yaml_documents(text, "not YAML")


class _JsonList(msgspec.Struct):
    """The outside of a `List`, with its items still as text."""

    kind: str
    items: list[msgspec.Raw]


def _json_documents(text: str) -> Iterable[object]:
    """Return the one document, or the items of a list one by one, which saves most memory."""
    try:
        found = msgspec.json.decode(text, type=_JsonList)
    except msgspec.ValidationError:
        return [msgspec.json.decode(text)]
    if not found.kind.endswith("List"):
        return [msgspec.json.decode(text)]
    return ({"kind": found.kind, "items": [msgspec.json.decode(item)]} for item in found.items)


def _yaml_documents(text: str, problem: str) -> list[object]:
    import yaml

    try:
        found = [d for d in yaml.load_all(text, _loader()) if d is not None]
    except (yaml.YAMLError, ValueError, LookupError) as error:
        # ValueError and LookupError come from an explicit tag on a text of another type.
        raise ObjectError(f"{problem}: {' '.join(str(error).split())}") from error
    if not found:
        raise ObjectError("the file is empty")
    return found


@lru_cache(maxsize=1)
def _loader() -> type:
    """Return a YAML loader that leaves time stamps as text, as the API does."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith("timestamp")]
        for first, resolvers in Loader.yaml_implicit_resolvers.items()
    }
    Loader.add_constructor("tag:yaml.org,2002:timestamp", Loader.construct_yaml_str)
    return Loader


def _flatten(document: object) -> Iterator[object]:
    """Yield the objects of a document: itself, the elements of a list, the items of a `List`."""
    if isinstance(document, list):
        for element in document:
            yield from _flatten(element)
    elif isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
        item_kind = str(document["kind"]).removesuffix("List")
        items = document.get("items") or []
        if not isinstance(items, list):
            raise ObjectError(f"items of a {item_kind}List are not a list")
        for element in items:
            yield from _flatten(
                {"kind": item_kind, **element} if isinstance(element, dict) else element
            )
    else:
        yield document


def _take(item: object, found: dict[Key, Object], problems: list[Undecodable]) -> None:
    if not isinstance(item, dict) or not item.get("kind"):
        raise ObjectError(f"expected an object with a kind, found {str(item)[:60]!r}")
    kind = _KINDS.get(str(item["kind"]))
    if kind is None or not _is_of_group(kind, item):
        return  # Deployments and the like are often in the same files.
    name = _name(item)
    try:
        decoded = msgspec.convert(item, kind.object_type)
        _require(decoded.metadata.name, "metadata.name is missing")
        _require_usable(kind, item)
    except (msgspec.ValidationError, ObjectError) as error:
        problems.append(Undecodable(kind, name, str(error)))
        return
    namespace = decoded.metadata.namespace
    if kind in _NAMESPACED and not namespace:
        namespace = "default"
        decoded = msgspec.structs.replace(
            decoded, metadata=msgspec.structs.replace(decoded.metadata, namespace=namespace)
        )
    key = (kind, namespace, decoded.metadata.name)
    if key in found:
        problems.append(Undecodable(kind, name, "the file holds another object of this name"))
    else:
        found[key] = decoded


def _is_of_group(kind: Kind, item: Mapping[str, object]) -> bool:
    """Is it not another group's kind of the same name (Knative's Service)? No version passes."""
    return str(item.get("apiVersion", _GROUPS[kind])).startswith(_GROUPS[kind])


def _name(item: Mapping[str, object]) -> str:
    meta = item.get("metadata")
    if not isinstance(meta, dict):
        return ""
    namespace, name = meta.get("namespace"), str(meta.get("name", ""))[:80]
    return f"{str(namespace)[:80]}/{name}" if namespace else name


def _require(value: object, message: str) -> None:
    if not value:
        raise ObjectError(message)


def _require_usable(kind: Kind, item: Mapping[str, object]) -> None:
    """Check what an API server would have filled in. Raises `ObjectError` if it is missing."""
    if kind is Kind.SERVICE:
        spec = item.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        if spec.get("type") != "ExternalName":
            _require(
                spec.get("clusterIP"),
                "spec.clusterIP is missing: without a cluster nobody allocates one, so write the"
                " address you want the Service to have (or None for a headless Service)",
            )
    elif kind is Kind.ENDPOINT_SLICE:
        meta = item.get("metadata")
        labels = meta.get("labels") if isinstance(meta, dict) else None
        _require(
            isinstance(labels, dict) and labels.get(SERVICE_NAME_LABEL),
            f"label {SERVICE_NAME_LABEL} is missing: it says which Service the slice serves",
        )
