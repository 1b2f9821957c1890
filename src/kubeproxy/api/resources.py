"""What the proxy asks the API server for: one row per kind, selectors to the letter upstream's."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from kubeproxy.api.objects import HEADLESS_LABEL, PROXY_NAME_LABEL
from kubeproxy.api.source import Kind
from kubeproxy.api.watch import Tracked

T = TypeVar("T", bound=Tracked)


class Resource(msgspec.Struct, Generic[T], frozen=True):
    """A collection to list and watch."""

    name: str
    path: str
    type: type[T]
    label_selector: str = ""
    field_selector: str = ""

    @property
    def selectors(self) -> tuple[tuple[str, str], ...]:
        pairs = (("labelSelector", self.label_selector), ("fieldSelector", self.field_selector))
        return tuple((name, value) for name, value in pairs if value)

    def decoder(self) -> msgspec.json.Decoder[T]:
        """Lenient about numbers in strings and the like, as other clients are."""
        return msgspec.json.Decoder(self.type)


def resource_for(kind: Kind, node_name: str) -> Resource[Tracked]:
    """The collection in which the objects of a kind are found; of nodes only our own."""
    path, labels, fields = _TABLE[kind]
    return Resource(
        name=kind.value,
        path=path,
        type=kind.object_type,
        label_selector=labels,
        field_selector=fields.format(node=node_name),
    )


_TABLE = {
    Kind.SERVICE: ("/api/v1/services", f"!{PROXY_NAME_LABEL}", "spec.clusterIP!=None"),
    Kind.ENDPOINT_SLICE: ("/apis/discovery.k8s.io/v1/endpointslices", f"!{HEADLESS_LABEL}", ""),
    Kind.NODE: ("/api/v1/nodes", "", "metadata.name={node}"),
    Kind.SERVICE_CIDR: ("/apis/networking.k8s.io/v1/servicecidrs", "", ""),
}
