"""The collections that are listed and watched: one row per kind, with upstream's selectors."""

from __future__ import annotations

import msgspec

from kubeproxy.api.objects import HEADLESS_LABEL, PROXY_NAME_LABEL
from kubeproxy.api.source import Kind


class Resource(msgspec.Struct, frozen=True):
    """A collection to list and watch."""

    kind: Kind
    path: str
    label_selector: str = ""
    field_selector: str = ""

    @property
    def name(self) -> str:
        """The kind as the log names it."""
        return self.kind.value

    @property
    def selectors(self) -> tuple[tuple[str, str], ...]:
        pairs = (("labelSelector", self.label_selector), ("fieldSelector", self.field_selector))
        return tuple((name, value) for name, value in pairs if value)


def resource_for(kind: Kind, node_name: str) -> Resource:
    """Return the collection that holds the objects of a kind. Of nodes it selects only ours."""
    path, labels, fields = _TABLE[kind]
    return Resource(kind, path, labels, fields.format(node=node_name))


_TABLE = {
    Kind.SERVICE: ("/api/v1/services", f"!{PROXY_NAME_LABEL}", "spec.clusterIP!=None"),
    Kind.ENDPOINT_SLICE: ("/apis/discovery.k8s.io/v1/endpointslices", f"!{HEADLESS_LABEL}", ""),
    Kind.NODE: ("/api/v1/nodes", "", "metadata.name={node}"),
    Kind.SERVICE_CIDR: ("/apis/networking.k8s.io/v1/servicecidrs", "", ""),
}
