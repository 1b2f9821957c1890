"""The inspection API from the side of the person who asks: HTTP over a Unix socket.

A proxy in a container of its own has its socket in the container's file system. It is found through
/proc, as any process of the same network namespace that has the daemon's name.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from kpctl.look.exits import NOT_RUNNING
from kpctl.snapshot.answers import decode_answer
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import ServiceName
from kubeproxy.go.text import format_os_error
from kubeproxy.inspection.types import (
    VERSION,
    CarriedConnections,
    Changes,
    Held,
    History,
    Page,
    Status,
)
from kubeproxy.run.presence import proxy_processes

DEFAULT_SOCKET = Path("/run/kube-proxy/kube-proxy.sock")
TIMEOUT_SECONDS = 60.0

T = TypeVar("T")


class NotRunning(ProxyError):
    """No proxy answers."""

    exit_code = NOT_RUNNING


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("kube-proxy", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Client:
    """Asks one proxy. Raises NotRunning if it does not answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = UnixConnection(path)

    def status(self) -> Status:
        return self._get("status", Status)

    def history(self) -> History:
        return self._get("history", History)

    def connections(self, most_flows: int = 0) -> CarriedConnections:
        """What the proxy itself carries, with up to so many connections one by one."""
        return self._get(f"connections?limit={most_flows}", CarriedConnections)

    def service(self, name: ServiceName) -> tuple[Held, ...]:
        """Return one Service in every family that knows it."""
        place = f"services/{quote(name.namespace, safe='')}/{quote(name.name, safe='')}"
        return self._get(place, tuple[Held, ...])

    def changes(self, mark: str = "") -> Changes:
        """Return the Services that changed since a mark of an earlier answer."""
        return self._get(f"changes?since={quote(mark, safe='')}", Changes)

    def services(self) -> Iterator[Held]:
        """Yield every Service of every family, page by page."""
        cursor = ""
        while True:
            page = self._get(f"services?cursor={cursor}" if cursor else "services", Page)
            yield from page.items
            cursor = page.next
            if not cursor:
                return

    def close(self) -> None:
        self._connection.close()

    def _get(self, place: str, answer: type[T]) -> T:
        try:
            self._connection.request("GET", f"/{VERSION}/{place}")
            response = self._connection.getresponse()
            body = response.read()
        except OSError as error:
            raise NotRunning(_problem(self.path, format_os_error(error))) from error
        except http.client.HTTPException as error:
            raise NotRunning(_problem(self.path, f"broken answer ({error})")) from error
        if response.status != http.client.OK:
            text = body.decode(errors="replace").strip()
            raise ProxyError(f"{self.path}: {place}: {text or response.status}")
        try:
            return decode_answer(body, answer)
        except msgspec.DecodeError as error:
            raise ProxyError(
                f"{self.path}: the answer is not understood ({error}); use the kpctl that came with"
                " this kube-proxy"
            ) from error


def find_socket(wanted: Path | None) -> Path:
    """Return the socket that was asked for, or the one that a proxy in this namespace serves."""
    if wanted is not None:
        return wanted
    if DEFAULT_SOCKET.exists():
        return DEFAULT_SOCKET
    for process in proxy_processes():
        inside = Path(f"/proc/{process}/root") / DEFAULT_SOCKET.relative_to("/")
        if inside.exists():
            return inside
    return DEFAULT_SOCKET


def _problem(path: Path, reason: str) -> str:
    return (
        f"no kube-proxy answers at {path}: {reason}. Is one running here, as this user? --socket"
        " names another place; -f FILES and --bundle FILE need none"
    )
