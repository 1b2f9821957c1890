"""Where this process gets its objects from, chosen by flags: manifests, or an API server.

Both answer the same three questions: which Node are we, where do events come from, and who takes
events of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from kubeproxy.api import objects
from kubeproxy.api.manifests import ManifestSource
from kubeproxy.api.source import Kind, Source
from kubeproxy.status.events import EventPoster
from kubeproxy.status.metrics import Metrics


class Origin(Protocol):
    """A place objects come from."""

    async def find_node(self, name: str, *, needs_pod_cidrs: bool) -> objects.Node | None:
        """The Node object, waited for as long as upstream would; None if there is none."""

    def source(self, node_name: str) -> Source: ...

    @property
    def needs_node(self) -> bool:
        """Is a node without a Node object unfit to receive traffic?"""

    @property
    def poster(self) -> EventPoster | None: ...

    def observe(self, metrics: Metrics) -> None:
        """From now on, count what is asked of others in these metrics."""

    async def close(self) -> None: ...


class ManifestOrigin:
    """Files. There is nobody to wait for and nobody to tell."""

    def __init__(self, path: Path) -> None:
        self._source = ManifestSource(path)

    async def find_node(self, name: str, *, needs_pod_cidrs: bool) -> objects.Node | None:
        found = self._source.objects().get((Kind.NODE, "", name))
        return found if isinstance(found, objects.Node) else None

    def source(self, node_name: str) -> Source:
        return self._source

    @property
    def needs_node(self) -> bool:
        return False

    @property
    def poster(self) -> EventPoster | None:
        return None

    def observe(self, metrics: Metrics) -> None:
        return None

    async def close(self) -> None:
        return None
