"""The fields that the API knows, so that a typo in a manifest can be named. Pure.

An API server warns of an unknown field; without one `clusterIp` would just have no effect. The
table has all fields of the watched kinds in v1.36, also those the proxy does not read. What may
hold anything (labels, annotations, the status of a Node) is not looked into, but for annotations
with our prefix: those have no other reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from kubeproxy.api.objects import ANNOTATIONS, PREFIX
from kubeproxy.api.source import Kind

MOST_NAMED = 20
"""How many unknown fields of one object are named. A wrong object may have thousands."""

_LONGEST_FIELD = 80

Fields: TypeAlias = Mapping[str, "Fields | None"]
"""The fields of an object, or of each element of a list. None: not looked into."""


def _fields(names: str, **nested: Fields) -> Fields:
    return dict.fromkeys(names.split()) | nested


_META = _fields(
    "name generateName namespace selfLink uid resourceVersion generation creationTimestamp"
    " deletionTimestamp deletionGracePeriodSeconds labels annotations ownerReferences finalizers"
    " clusterName managedFields"
)
_SERVICE = _fields(
    "selector clusterIP clusterIPs type externalIPs sessionAffinity loadBalancerIP"
    " loadBalancerSourceRanges externalName externalTrafficPolicy healthCheckNodePort"
    " publishNotReadyAddresses topologyKeys ipFamily ipFamilies ipFamilyPolicy"
    " allocateLoadBalancerNodePorts loadBalancerClass internalTrafficPolicy trafficDistribution",
    ports=_fields("name protocol appProtocol port targetPort nodePort"),
    sessionAffinityConfig=_fields("", clientIP=_fields("timeoutSeconds")),
)
_SERVICE_STATUS = _fields(
    "conditions", loadBalancer=_fields("", ingress=_fields("ip hostname ipMode ports"))
)
_ENDPOINT = _fields(
    "addresses hostname targetRef deprecatedTopology nodeName zone",
    conditions=_fields("ready serving terminating"),
    hints=_fields("", forZones=_fields("name"), forNodes=_fields("name")),
)
_NODE = _fields(
    "podCIDR podCIDRs providerID unschedulable configSource externalID",
    taints=_fields("key value effect timeAdded"),
)
_TYPE = "apiVersion kind"
_KINDS: Mapping[Kind, Fields] = {
    Kind.SERVICE: _fields(_TYPE, metadata=_META, spec=_SERVICE, status=_SERVICE_STATUS),
    Kind.ENDPOINT_SLICE: _fields(
        f"{_TYPE} addressType",
        metadata=_META,
        endpoints=_ENDPOINT,
        ports=_fields("name protocol port appProtocol"),
    ),
    Kind.NODE: _fields(f"{_TYPE} status", metadata=_META, spec=_NODE),
    Kind.SERVICE_CIDR: _fields(f"{_TYPE} status", metadata=_META, spec=_fields("cidrs")),
}


def unknown_fields(kind: Kind, item: Mapping[str, object]) -> tuple[str, ...]:
    """Return the paths of fields that the API does not know, each once: `spec.ports[].prot`."""
    found: dict[str, None] = {}
    for path in _unknown(item, _KINDS[kind], ""):
        found.setdefault(path)
        if len(found) == MOST_NAMED:
            break
    return tuple(found)


def unread_annotations(kind: Kind, item: Mapping[str, object]) -> tuple[str, ...]:
    """Return the annotations with our prefix that are not read from an object of this kind."""
    meta = item.get("metadata")
    found = meta.get("annotations") if isinstance(meta, dict) else None
    names = found if isinstance(found, dict) else ()
    unread = [n[:_LONGEST_FIELD] for n in names if n.startswith(PREFIX) and n not in _READ[kind]]
    return tuple(unread[:MOST_NAMED])


_READ: Mapping[Kind, frozenset[str]] = {
    kind: frozenset(key.name for key in ANNOTATIONS if key.kind == kind.value) for kind in Kind
}


def _unknown(value: object, known: Fields, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for element in value:
            yield from _unknown(element, known, f"{path}[]")
    elif isinstance(value, dict):
        prefix = f"{path}." if path else ""
        for name, inner in value.items():
            if name not in known:
                yield f"{prefix}{str(name)[:_LONGEST_FIELD]}"
            elif (fields := known[name]) is not None:
                yield from _unknown(inner, fields, f"{prefix}{name}")
