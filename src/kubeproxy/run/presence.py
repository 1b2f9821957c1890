"""How a running daemon is noticed by other programs in its network namespace.

The daemon holds an abstract Unix socket whose name says its mode. Such a name belongs to the
network namespace, as the rules do, and vanishes with the process however that ends: there is no
file to go stale, and no process id to be reused. Nothing is ever sent over it.

Upstream's kube-proxy has no such socket. It is found by its name among the processes that can be
seen from here.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from kubeproxy.logs import get_logger

logger = get_logger(__name__)

_PREFIX = "kubeproxy/"
_SOCKETS = Path("/proc/thread-self/net/unix")
_MARK = re.compile(rf" @{_PREFIX}([a-z]+)/(\d+)$", re.M)
_PROGRAM = "kube-proxy"


@contextlib.contextmanager
def announced(mode: str) -> Iterator[None]:
    """Be visible as a daemon of this mode. A host that does not allow it is no reason to stop."""
    with contextlib.ExitStack() as stack:
        try:
            mark = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            mark.bind(f"\0{_PREFIX}{mode}/{os.getpid()}")
        except OSError as error:
            logger.v(2).info("Cannot be noticed by kpctl", err=str(error))
        yield


def running_proxies() -> list[str]:
    """Describe the daemons in the current network namespace: `kube-proxy in nftables mode …`."""
    marked = _marked(_SOCKETS)
    return marked or [f"kube-proxy (process {pid})" for pid in proxy_processes()]


def _marked(sockets: Path) -> list[str]:
    try:
        text = sockets.read_text(errors="replace")
    except OSError:
        return []
    found = sorted(set(_MARK.findall(text)))
    return [f"kube-proxy in {mode} mode (process {pid})" for mode, pid in found]


def proxy_processes() -> Iterator[int]:
    """Yield the processes of the current network namespace that have the daemon's name."""
    here = _namespace(Path("/proc/thread-self"))
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_proxy = (place / "comm").read_text().strip() == _PROGRAM
            if is_proxy and _namespace(place) == here:
                yield int(place.name)


def _namespace(process: Path) -> str:
    return str((process / "ns" / "net").readlink())
