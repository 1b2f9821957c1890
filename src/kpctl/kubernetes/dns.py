"""A name server of the cluster, in place of CoreDNS: A and AAAA records of Services and pods.

`python -m kpctl.kubernetes.dns API CA ADDRESS...`: nothing is kept; each question asks the API
server, which a lab can bear. Names outside the cluster do not exist.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import ssl
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from kpctl.apiserver.real import ADMIN_TOKEN
from kpctl.kubernetes.network import DOMAIN

_TYPES = {1: 4, 28: 6}
_ANSWER, _NO_NAME, _FAILED = 0x8400, 0x8403, 0x8402
_TTL_SECONDS = 1

Get = Callable[[str], Any]


def answer(question: bytes, get: Get) -> bytes:
    """The response to a DNS message with one question."""
    name, kind, end = _parse(question)
    try:
        addresses = list(resolve(name, get))
        flags = _ANSWER if addresses else _NO_NAME
    except OSError:
        addresses, flags = [], _FAILED
    wanted = [a for a in addresses if a.version == _TYPES.get(kind)]
    header = question[:2] + struct.pack(">5H", flags, 1, len(wanted), 0, 0)
    # Each record's name is a pointer to the question's.
    fields = [struct.pack(">3HIH", 0xC00C, kind, 1, _TTL_SECONDS, len(a.packed)) for a in wanted]
    records = [head + address.packed for head, address in zip(fields, wanted, strict=True)]
    return header + question[12:end] + b"".join(records)


def _parse(message: bytes) -> tuple[str, int, int]:
    """Name and type of the first question, and where it ends."""
    labels, at = [], 12
    while length := message[at]:
        labels.append(message[at + 1 : at + 1 + length].decode("ascii", "replace").lower())
        at += 1 + length
    (kind,) = struct.unpack_from(">H", message, at + 1)
    return ".".join(labels), kind, at + 5


def resolve(name: str, get: Get) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Addresses of [HOST.]SERVICE.NAMESPACE.svc.DOMAIN."""
    labels = name.removesuffix(f".svc.{DOMAIN}").split(".")
    if not name.endswith(f".svc.{DOMAIN}") or len(labels) not in (2, 3):
        return
    *host, service, namespace = labels
    found = get(f"/api/v1/namespaces/{namespace}/services/{service}")
    if found is None:
        return
    if found["spec"].get("type") == "ExternalName":
        # The addresses behind the alias, without the alias: no one asks for it.
        yield from resolve(found["spec"]["externalName"].rstrip("."), get)
        return
    if not host and found["spec"].get("clusterIP") != "None":
        yield from map(ipaddress.ip_address, found["spec"].get("clusterIPs", []))
        return
    ready_only = not found["spec"].get("publishNotReadyAddresses", False)
    query = f"?labelSelector=kubernetes.io/service-name%3D{service}"
    slices = get(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices{query}")
    for endpoint in [e for s in slices["items"] for e in s.get("endpoints") or []]:
        is_ready = endpoint.get("conditions", {}).get("ready", True) or not ready_only
        if is_ready and (not host or endpoint.get("hostname") == host[0]):
            yield from map(ipaddress.ip_address, endpoint["addresses"])


def read_api(server: str, context: ssl.SSLContext, path: str) -> Any:
    """An object of the API server, or None if there is none."""
    request = Request(server + path, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    try:
        with urlopen(request, timeout=60, context=context) as response:
            return json.load(response)
    except HTTPError as error:
        if error.code == 404:
            return None
        raise


class _Udp(asyncio.DatagramProtocol):
    """Answers each datagram in a thread."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        task = asyncio.create_task(self._respond(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._transport.sendto(await asyncio.to_thread(answer, data, self._get), addr)


async def _tcp(get: Get, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    (length,) = struct.unpack(">H", await reader.readexactly(2))
    response = await asyncio.to_thread(answer, await reader.readexactly(length), get)
    writer.write(struct.pack(">H", len(response)) + response)
    writer.close()


async def _serve(server: str, ca: str, addresses: list[str]) -> None:
    get = partial(read_api, server, ssl.create_default_context(cafile=ca))
    loop = asyncio.get_running_loop()
    for address in addresses:
        await loop.create_datagram_endpoint(lambda: _Udp(get), local_addr=(address, 53))
        await asyncio.start_server(partial(_tcp, get), address, 53)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2], sys.argv[3:]))
