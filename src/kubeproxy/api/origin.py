"""The API server as the place objects come from: node, source and event poster over one client."""

from __future__ import annotations

from kubeproxy.api.api_source import ApiSource
from kubeproxy.api.auth.credentials import find_access
from kubeproxy.api.client import Client, ClientSettings, connect
from kubeproxy.api.events import ApiEventPoster
from kubeproxy.api.node import NodeFinder
from kubeproxy.api.objects import Node
from kubeproxy.config.command import Settings
from kubeproxy.logs import get_logger
from kubeproxy.status.api_client import LateObserver, MetricObserver, MetricTable

logger = get_logger(__name__)

_JSON = ("application/json", "")
_DEFAULT_CONTENT_TYPE = "application/vnd.kubernetes.protobuf"


class ApiOrigin:
    """One client for everything, like upstream's."""

    def __init__(self, client: Client, observer: LateObserver) -> None:
        self._client = client
        self._observer = observer
        self._poster = ApiEventPoster(client)

    @classmethod
    def open(cls, settings: Settings) -> ApiOrigin:
        """Find the credentials the flags describe; raises `ConfigError` where they are wrong."""
        section = settings.config.client_connection
        found = find_access(kubeconfig=section.kubeconfig, master=settings.master)
        for warning in found.warnings:
            logger.info(warning)
        if section.content_type not in (*_JSON, _DEFAULT_CONTENT_TYPE):
            logger.info("This client speaks JSON only", contentType=section.content_type)
        observer = LateObserver()
        limits = ClientSettings(qps=section.qps, burst=section.burst)
        return cls(connect(found.access, settings=limits, observer=observer), observer)

    async def find_node(self, name: str, *, needs_pod_cidrs: bool) -> Node | None:
        return await NodeFinder(self._client).find(name, needs_pod_cidrs=needs_pod_cidrs)

    def source(self, node_name: str) -> ApiSource:
        return ApiSource(self._client, node_name=node_name)

    @property
    def needs_node(self) -> bool:
        return True

    @property
    def poster(self) -> ApiEventPoster:
        return self._poster

    def observe(self, table: MetricTable) -> None:
        """From now on requests are counted in these metrics."""
        self._observer.target = MetricObserver(table)

    async def close(self) -> None:
        await self._client.close()
