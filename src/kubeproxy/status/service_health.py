"""Listeners for `healthCheckNodePort`: load balancers ask them whether to use this node.

There is one `ServiceHealth` per IP family. After each successful sync it gets the Services that
have a port and the number of their ready local endpoints. All addresses of a Service open or none
does. A failure is logged, becomes an event, and is retried at the next sync. Closing is immediate
and drops open connections, as load balancers expect of a port that is gone.

Which Services and which addresses are used is decided by the caller.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.logs import get_logger
from kubeproxy.status.connections import Connections, Listener
from kubeproxy.status.event_series import WARNING, service_reference
from kubeproxy.status.events import Recorder
from kubeproxy.status.http import JSON, NOSNIFF, Request, Response
from kubeproxy.status.listen import ListenError, Network, listen

logger = get_logger(__name__)


class ServiceHealth:
    """The health ports of one family."""

    def __init__(
        self,
        family: Family,
        *,
        node_name: str,
        is_healthy: Callable[[], bool] = lambda: True,
        addresses: Sequence[str] | None = None,
        recorder: Recorder | None = None,
        connections: Connections | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Listen on `addresses`, or on all of the family if none are given.

        `is_healthy` is the proxy's own health; without a health server it is always true. All
        ports, of both families if they are given the same `connections`, share their limits.
        """
        self._family = family
        self._node_name = node_name
        self._is_healthy = is_healthy
        self._addresses = (family.wildcard,) if addresses is None else tuple(addresses)
        self._recorder = recorder
        self._connections = Connections() if connections is None else connections
        self._now_ns = now_ns
        self._ports: dict[ServiceName, HealthPort] = {}

    async def sync_services(self, wanted: Mapping[ServiceName, int]) -> None:
        """Open and close listeners until exactly these Services have theirs."""
        for name, held in list(self._ports.items()):
            if wanted.get(name) != held.port:
                self._close(name)
        for name, port in wanted.items():
            if name not in self._ports:
                await self._open(name, port)

    def sync_endpoints(self, counts: Mapping[ServiceName, int]) -> None:
        """Set how many local endpoints each Service has. A Service that is absent has none."""
        for name, held in self._ports.items():
            held.local_endpoints = counts.get(name, 0)

    def close(self) -> None:
        """Close everything."""
        for name in list(self._ports):
            self._close(name)

    @property
    def open_ports(self) -> Mapping[ServiceName, int]:
        """The ports that are open now."""
        return {name: held.port for name, held in self._ports.items()}

    def _close(self, name: ServiceName) -> None:
        held = self._ports.pop(name)
        logger.v(2).info("Closing healthcheck", service=str(name), port=held.port)
        held.close()

    async def _open(self, name: ServiceName, port: int) -> None:
        logger.v(2).info("Opening healthcheck", service=str(name), port=port)
        try:
            sockets = _listen_all(self._family, self._addresses, port)
        except ListenError as error:
            self._report(name, port, error)
            return
        opened = HealthPort(name, port, self._is_healthy)
        opened.serve(sockets, self._connections, self._now_ns)
        self._ports[name] = opened

    def _report(self, name: ServiceName, port: int, error: ListenError) -> None:
        logger.error(
            error,
            "Failed to start healthcheck",
            node=self._node_name,
            service=str(name),
            port=port,
        )
        if self._recorder is not None:
            self._recorder.record(
                service_reference(name),
                type=WARNING,
                reason="FailedToStartServiceHealthcheck",
                action="Listen",
                note=f"node {self._node_name} failed to start healthcheck "
                f'"{name}" on port {port}: {error}',
            )


class HealthPort:
    """The listeners of one Service."""

    def __init__(self, service: ServiceName, port: int, is_healthy: Callable[[], bool]) -> None:
        self.port = port
        self.local_endpoints = 0
        self._service = service
        self._is_healthy = is_healthy
        self._listeners: list[Listener] = []

    def serve(
        self,
        sockets: Sequence[socket.socket],
        connections: Connections,
        now_ns: Callable[[], int],
    ) -> None:
        for sock in sockets:
            listener = Listener(sock, self.respond, connections, now_ns=now_ns)
            listener.start()
            self._listeners.append(listener)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    def respond(self, _: Request) -> Response:
        """Respond to a probe: any path, any method."""
        return service_response(
            self._service, self.local_endpoints, proxy_healthy=self._is_healthy()
        )


def service_response(service: ServiceName, count: int, *, proxy_healthy: bool) -> Response:
    """Make the response to a probe of this Service's port.

    Load balancers may weigh nodes by the header with the number of endpoints.
    """
    body = {
        "service": {"namespace": service.namespace, "name": service.name},
        "localEndpoints": count,
        "serviceProxyHealthy": proxy_healthy,
    }
    headers = (JSON, NOSNIFF, ("X-Load-Balancing-Endpoint-Weight", str(count)))
    return Response(_tabbed(body), 200 if count and proxy_healthy else 503, headers)


def _tabbed(value: object) -> bytes:
    # Upstream indents with tabs. Names of Kubernetes objects hold no blanks, so two of them are
    # always indentation.
    return msgspec.json.format(msgspec.json.encode(value), indent=2).replace(b"  ", b"\t")


def _listen_all(family: Family, addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Open all sockets. If one fails, close the others and raise ListenError."""
    network: Network = "tcp4" if family is Family.IPV4 else "tcp6"
    with ExitStack() as undo:
        opened = [undo.enter_context(listen(network, address, port)) for address in addresses]
        undo.pop_all()
    return opened
