"""Bytes of lists and watches as an API server sends them, and the events they stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from kubeproxy.api.objects import Service, ServiceLabels, ServiceMeta, ServiceSpec
from kubeproxy.api.source import Delete, Kind, Synced, Upsert
from kubeproxy.api.watch import INITIAL_EVENTS_END, Page, Tracker, WatchEvent

SYNCED = Synced(Kind.SERVICE)


def raw(name: str, *, version: int = 1, port: object = 0) -> dict[str, object]:
    """A Service as the server sends it, with fields that are not read."""
    meta = {"name": name, "namespace": "ns", "resourceVersion": str(version), "labels": {"a": "b"}}
    spec = {"healthCheckNodePort": port, "unknownField": [1, {"x": 2}]}
    return {"kind": "Service", "metadata": meta, "spec": spec, "unknownField": [1, {"x": 2}]}


def upsert(name: str, port: int = 0, *, version: int = 1) -> Upsert:
    meta = ServiceMeta(name, "ns", resource_version=str(version), labels=ServiceLabels())
    return Upsert(Kind.SERVICE, Service(meta, ServiceSpec(health_check_node_port=port)))


def delete(name: str) -> Delete:
    return Delete(Kind.SERVICE, "ns", name)


def page(*items: Mapping[str, object], version: str = "10", token: str = "") -> bytes:
    meta = {"resourceVersion": version} | ({"continue": token} if token else {})
    return json.dumps({"kind": "ServiceList", "metadata": meta, "items": list(items)}).encode()


def line(type_: str, obj: Mapping[str, object]) -> bytes:
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


def bookmark(version: str, *, ends: bool = False) -> bytes:
    annotations = {INITIAL_EVENTS_END: "true"} if ends else {}
    return line("BOOKMARK", {"metadata": {"resourceVersion": version, "annotations": annotations}})


def listed(*names: str) -> Tracker:
    """A tracker whose first list named these."""
    result = Tracker(Kind.SERVICE)
    result.begin_list()
    fed(result, page(*(raw(name) for name in names)))
    return result


class FedPage(NamedTuple):
    """A page of which every event was taken."""

    events: tuple[WatchEvent, ...]
    continue_token: str


def fed(tracker: Tracker, body: bytes) -> FedPage:
    """Give the tracker a page, and take its events."""
    found: Page = tracker.feed_page(body)
    return FedPage(tuple(found.events), found.continue_token)
