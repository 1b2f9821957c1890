"""The storage of the small API server: objects, versions, history and selectors. No I/O.

Like the real one it has one version counter for everything and keeps a history that can be
compacted. A watch with a selector sees an object that stops matching as deleted, and one that
starts to match as added.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Iterator, Mapping

import msgspec

Json = dict[str, object]

GROUPS = {
    "services": ("/api/v1", "Service", "v1"),
    "nodes": ("/api/v1", "Node", "v1"),
    "endpointslices": ("/apis/discovery.k8s.io/v1", "EndpointSlice", "discovery.k8s.io/v1"),
    "servicecidrs": ("/apis/networking.k8s.io/v1", "ServiceCIDR", "networking.k8s.io/v1"),
    "events": ("/apis/events.k8s.io/v1", "Event", "events.k8s.io/v1"),
}
"""Collection → path of its group, kind, apiVersion."""


def group_of(collection: str) -> str:
    """Return the name of a collection's API group, empty for the core group."""
    return GROUPS[collection][2].rpartition("/")[0]


def qualified(collection: str) -> str:
    """Return a collection's name as error messages have it."""
    group = group_of(collection)
    return f"{collection}.{group}" if group else collection


class StatusError(Exception):
    """A response that is no success, with its Status object."""

    def __init__(self, code: int, reason: str, message: str, *, retry_after: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        self.status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


class Selector(msgspec.Struct, frozen=True):
    """Parsed label and field selectors as (path, operator, value), all of which must hold."""

    labels: tuple[tuple[str, str, str], ...] = ()
    fields: tuple[tuple[str, str, str], ...] = ()

    def matches(self, item: Json) -> bool:
        labels = _dig(item, "metadata", "labels") or {}
        assert isinstance(labels, dict)
        return all(_holds(labels.get(path), op, value) for path, op, value in self.labels) and all(
            _holds(_dig(item, *path.split(".")), op, value) for path, op, value in self.fields
        )


def parse_selector(labels: str, fields: str) -> Selector:
    return Selector(tuple(map(_term, _terms(labels))), tuple(map(_term, _terms(fields))))


def _terms(text: str) -> list[str]:
    return [term for term in text.split(",") if term]


def _term(text: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        path, found, value = text.partition(operator)
        if found:
            return path, "!=" if operator == "!=" else "=", value
    return (text[1:], "absent", "") if text.startswith("!") else (text, "present", "")


def _holds(found: object, operator: str, value: str) -> bool:
    if operator in ("absent", "present"):
        return (found is None) == (operator == "absent")
    return (found == value) == (operator == "=")


def _dig(item: object, *path: str) -> object:
    for name in path:
        item = item.get(name) if isinstance(item, dict) else None
    return item


class Revision(msgspec.Struct, frozen=True):
    """One entry of the history: an object before and after it was written."""

    version: int
    collection: str
    before: Json | None
    after: Json | None

    def seen_by(self, selector: Selector) -> tuple[str, Json] | None:
        """Return the event of a watch with this selector, or None if it does not see it."""
        had = self.before is not None and selector.matches(self.before)
        has = self.after is not None and selector.matches(self.after)
        if has:
            assert self.after is not None
            return ("MODIFIED" if had else "ADDED"), self.after
        if not had:
            return None
        assert self.before is not None
        return "DELETED", _with_version(self.before, self.version)


def _with_version(item: Json, version: int) -> Json:
    metadata = item["metadata"]
    assert isinstance(metadata, dict)
    return {**item, "metadata": {**metadata, "resourceVersion": str(version)}}


class ObjectStore:
    """Collections of objects by (collection, namespace, name)."""

    def __init__(self) -> None:
        self.version = 1
        self.oldest = 0
        self.history: list[Revision] = []
        self._items: dict[tuple[str, str, str], Json] = {}
        self._uids = 0

    def list(self, collection: str, selector: Selector) -> list[Json]:
        found = (item for key, item in sorted(self._items.items()) if key[0] == collection)
        return [item for item in found if selector.matches(item)]

    def get(self, collection: str, namespace: str, name: str) -> Json:
        try:
            return self._items[collection, namespace, name]
        except KeyError:
            message = f'{qualified(collection)} "{name}" not found'
            raise StatusError(404, "NotFound", message) from None

    def create(self, collection: str, namespace: str, item: Json) -> Json:
        metadata = _metadata(item)
        name = str(metadata.get("name", ""))
        if (collection, namespace, name) in self._items:
            raise StatusError(
                409, "AlreadyExists", f'{qualified(collection)} "{name}" already exists'
            )
        self._uids += 1
        given = {"name": name, "uid": f"00000000-0000-4000-8000-{self._uids:012d}"}
        metadata |= given | ({"namespace": namespace} if namespace else {})
        return self._put(collection, namespace, name, {**item, "metadata": metadata})

    def update(self, collection: str, namespace: str, name: str, item: Json) -> Json:
        before = self.get(collection, namespace, name)
        wanted = _metadata(item).get("resourceVersion")
        if wanted and wanted != _metadata(before)["resourceVersion"]:
            raise StatusError(409, "Conflict", f'Operation cannot be fulfilled on "{name}"')
        fixed = {key: _metadata(before)[key] for key in ("name", "uid")}
        metadata = _metadata(item) | fixed | ({"namespace": namespace} if namespace else {})
        return self._put(collection, namespace, name, {**item, "metadata": metadata})

    def patch(self, collection: str, namespace: str, name: str, patch: Json) -> Json:
        before = self.get(collection, namespace, name)
        merged = merge_patch(before, patch)
        assert isinstance(merged, dict)
        return self._put(collection, namespace, name, merged)

    def delete(self, collection: str, namespace: str, name: str) -> Json:
        before = self.get(collection, namespace, name)
        del self._items[collection, namespace, name]
        self.version += 1
        self.history.append(Revision(self.version, collection, before, None))
        return before

    def compact(self) -> None:
        """Drop the history. A watch from an earlier version then fails with "Expired"."""
        self.oldest = self.version
        self.history = []

    def revisions(self, collection: str, after: int) -> Iterator[Revision]:
        """Return the revisions of a collection after a version.

        Raises `StatusError` if the history does not reach back so far.
        """
        if after < self.oldest:
            raise StatusError(410, "Expired", f"too old resource version: {after} ({self.oldest})")
        first = bisect_right(self.history, after, key=lambda revision: revision.version)
        return (found for found in self.history[first:] if found.collection == collection)

    def _put(self, collection: str, namespace: str, name: str, item: Json) -> Json:
        key = (collection, namespace, name)
        before = self._items.get(key)
        if before is not None and _with_version(item, 0) == _with_version(before, 0):
            return before
        self.version += 1
        after = _with_version(copy.deepcopy(item), self.version)
        self._items[key] = after
        self.history.append(Revision(self.version, collection, before, after))
        return after


def _metadata(item: Mapping[str, object]) -> Json:
    metadata = item.get("metadata") or {}
    assert isinstance(metadata, dict)
    return dict(metadata)


def merge_patch(target: object, patch: object) -> object:
    """Return the target with a JSON merge patch (RFC 7386) applied."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result
