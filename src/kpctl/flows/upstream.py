"""Upstream's kube-proxy on the nodes of a lab, so that a flow can begin with it.

It knows no manifests: on each node's loopback a small API server serves it the objects that the
lab has written, as they are when it starts. A mode of it is named `upstream-nftables`.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from kpctl.apiserver.small import SmallApiServer
from kpctl.apiserver.store import GROUPS, Json
from kpctl.lab.cluster import Lab
from kpctl.lab.proxy import BASE_FLAGS, Proxies

PREFIX = "upstream-"
MODES = ("nftables", "iptables", "ipvs")
_COLLECTIONS = {kind: name for name, (_, kind, _) in GROUPS.items()}


@asynccontextmanager
async def upstream_modes(lab: Lab, program: Path) -> AsyncIterator[None]:
    """Let the lab's proxies be started in modes of this program."""
    async with AsyncExitStack() as stack:
        servers: dict[str, SmallApiServer] = {}
        for node in lab.proxies.nodes:
            with lab.namespaces.inside(node):
                listener = socket.create_server(("127.0.0.1", 0))
            servers[node] = await stack.enter_async_context(
                SmallApiServer().serving(listener=listener)
            )
        for mode in MODES:
            command = partial(_command, lab.proxies, servers, program, mode)
            lab.proxies.other_programs[f"{PREFIX}{mode}"] = command
        yield


def _command(
    proxies: Proxies, servers: dict[str, SmallApiServer], program: Path, mode: str, node: str
) -> Sequence[str]:
    _fill(servers[node], proxies.manifests)
    kubeconfig = proxies.manifests.with_name(f"{node}.kubeconfig")
    kubeconfig.write_text(servers[node].kubeconfig())
    flags = {
        **BASE_FLAGS,
        "v": "4",  # ipvs mode does not log below that that it has synced
        "proxy-mode": mode,
        "hostname-override": node,
        "kubeconfig": str(kubeconfig),
        "kube-api-content-type": "application/json",
        # What reaches beyond a network namespace is left alone, as ours does without a cluster.
        "conntrack-tcp-timeout-established": "0s",
        "conntrack-tcp-timeout-close-wait": "0s",
    }
    return [str(program), *(f"--{name}={value}" for name, value in flags.items())]


def _fill(server: SmallApiServer, manifests: Path) -> None:
    """Give an API server what the manifests hold. It has no client yet."""
    server.store = type(server.store)()
    for path in sorted(manifests.glob("*.json")):
        for item in msgspec.json.decode(path.read_bytes())["items"]:
            _create(server, item)


def _create(server: SmallApiServer, item: Json) -> None:
    collection = _COLLECTIONS.get(str(item["kind"]))
    metadata = item["metadata"]
    assert isinstance(metadata, dict)
    if collection is not None:
        server.store.create(collection, str(metadata.get("namespace", "")), item)
