"""Does a slice serve what a Service says it forwards to? Pure.

In a cluster a controller writes the slices, so that target ports agree. Slices written by hand may
not: the proxy forwards to the port in the slice and never reads `targetPort`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeproxy.api.manifest_text import Key
from kubeproxy.api.objects import EndpointSlice
from kubeproxy.api.source import Kind, Object

_MOST_SHOWN = 5

Served = dict[tuple[str, str], dict[str, set[int]]]
"""Service → name of a port → the numbers that its slices have for it."""


def unserved_targets(
    objects: Mapping[Key, Object], target_ports: Mapping[Key, Mapping[str, int]]
) -> Iterator[str]:
    """Yield a sentence per target port of a Service that none of its slices serves."""
    if not target_ports:
        return
    served = _served(objects)
    for (_, namespace, name), targets in target_ports.items():
        slices = served.get((namespace, name))
        for port, number in targets.items():
            where = f'Service {namespace}/{name}: targetPort {number} of port "{port}"'
            if slices is None:
                yield f"{where}: no EndpointSlice names this Service, so nothing serves it"
            elif number not in (found := slices.get(port, set())):
                yield f"{where} is in no EndpointSlice of the Service; {_instead(port, found)}"


def _instead(port: str, found: set[int]) -> str:
    if not found:
        return f'they have no port of the name "{port}"'
    shown = ", ".join(map(str, sorted(found)[:_MOST_SHOWN]))
    return f"traffic goes to {shown}, which they have instead"


def _served(objects: Mapping[Key, Object]) -> Served:
    served: Served = {}
    for (kind, namespace, _), found in objects.items():
        if kind is not Kind.ENDPOINT_SLICE or not isinstance(found, EndpointSlice):
            continue
        service = (found.metadata.labels and found.metadata.labels.service_name) or ""
        ports = served.setdefault((namespace, service), {})
        for port in found.ports or ():
            if port.port is not None:
                ports.setdefault(port.name or "", set()).add(port.port)
    return served
