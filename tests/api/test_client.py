"""The client and its transport, against the small API server over loopback."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.recorded import RecordedRequests

from kpctl.apiserver.pki import Pki
from kpctl.apiserver.small import Fault, SmallApiServer
from kubeproxy.api.auth.access import Access, ExecSpec, Tls
from kubeproxy.api.auth.credentials import Credentials
from kubeproxy.api.client import Client, ClientSettings, connect, retry_after
from kubeproxy.api.problems import Refused, Unauthorized
from kubeproxy.api.transport import HttpSettings, HttpTransport, Request, user_agent
from kubeproxy.api.watch import Status, StatusDetails
from kubeproxy.errors import ConfigError, Expired, Forbidden, Unavailable

SERVICES = Request("GET", "/api/v1/services")
FAST = ClientSettings(qps=-1)


@asynccontextmanager
async def client_for(
    access: Access, observer: RecordedRequests | None = None
) -> AsyncIterator[Client]:
    client = connect(access, observer=observer or RecordedRequests(), settings=FAST, environment={})
    try:
        yield client
    finally:
        await client.close()


class Sleeps:
    """A clock that moves only with a sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@asynccontextmanager
async def timed_client(
    api: SmallApiServer, settings: ClientSettings = FAST
) -> AsyncIterator[tuple[Client, Sleeps, RecordedRequests]]:
    observer, sleeps = RecordedRequests(), Sleeps()
    client = Client(
        Credentials(Access(server=api.url), observer=observer),
        HttpTransport(HttpSettings(server=api.url), observer),
        settings=settings,
        observer=observer,
        clock=sleeps.clock,
        sleep=sleeps.sleep,
    )
    try:
        yield client, sleeps, observer
    finally:
        await client.close()


async def test_headers_say_who_we_are_and_what_we_want(api: SmallApiServer) -> None:
    async with client_for(Access(server=api.url, token="t")) as client:
        await client.read(SERVICES)
    headers = api.requests[0].headers
    assert headers["Authorization"] == "Bearer t"
    assert headers["Accept"] == "application/json"
    assert headers["Accept-Encoding"] == "gzip"
    assert headers["User-Agent"] == user_agent()
    assert headers["User-Agent"].startswith("kube-proxy/v1.36.4 (linux/")


async def test_compression_can_be_switched_off(api: SmallApiServer) -> None:
    async with client_for(Access(server=api.url, disables_compression=True)) as client:
        await client.read(SERVICES)
    assert api.requests[0].headers["Accept-Encoding"] == "identity"


async def test_connections_are_reused(api: SmallApiServer) -> None:
    async with client_for(Access(server=api.url)) as client:
        for _ in range(3):
            await client.read(SERVICES)
    assert len({request.peer for request in api.requests}) == 1


async def test_bodies_are_sent_with_their_type(api: SmallApiServer) -> None:
    body = json.dumps({"metadata": {"name": "a"}}).encode()
    async with client_for(Access(server=api.url)) as client:
        await client.read(Request("POST", "/api/v1/namespaces/ns/services", body=body))
        got = json.loads(await client.read(Request("GET", "/api/v1/namespaces/ns/services/a")))
    assert got["metadata"]["namespace"] == "ns"
    assert api.requests[0].headers["Content-Type"] == "application/json"


async def test_query_values_are_quoted(api: SmallApiServer) -> None:
    query = (("labelSelector", "!a/b,c=d"), ("fieldSelector", "spec.clusterIP!=None"))
    async with client_for(Access(server=api.url)) as client:
        await client.read(Request("GET", "/api/v1/services", query=query))
    assert api.requests[0].query == dict(query)


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (Fault(status=404, body=b'{"code":404,"message":"not here"}'), Refused, "404: not here"),
        (Fault(status=410), Expired, "HTTP status 410"),
        (Fault(status=500, body=b"oops"), Unavailable, "cannot answer now"),
        (
            Fault(status=504, body=b'{"message":"Too large resource version: 9, current: 3"}'),
            Expired,
            "Too large",
        ),
        (
            Fault(body=b'{"half', breaks=True),
            Unavailable,
            "the connection ended before the response did",
        ),
    ],
)
async def test_bad_answers_are_typed(
    api: SmallApiServer, fault: Fault, error: type[Exception], text: str
) -> None:
    api.faults.append(fault)
    async with client_for(Access(server=api.url)) as client:
        with pytest.raises(error, match=text) as caught:
            await client.read(SERVICES)
    assert "GET " in str(caught.value)
    assert "/api/v1/services" in str(caught.value)


async def test_a_missing_permission_is_named_with_verb_and_resource(api: SmallApiServer) -> None:
    api.tokens, api.forbidden = {"t": "proxy"}, {("list", "services")}
    async with client_for(Access(server=api.url, token="t")) as client:
        with pytest.raises(Forbidden) as caught:
            await client.read(SERVICES)
    text = str(caught.value)
    assert 'User "proxy" cannot list resource "services" in API group ""' in text
    assert "bind a ClusterRole" in text


async def test_unknown_credentials_are_explained(api: SmallApiServer) -> None:
    api.tokens = {}
    async with client_for(Access(server=api.url, token="t")) as client:
        with pytest.raises(Unauthorized, match="does not accept our credentials"):
            await client.read(SERVICES)


async def test_a_refused_plugin_credential_is_renewed_at_once(
    api: SmallApiServer, tmp_path: Path
) -> None:
    """The plugin prints the content of a file; the first content is no longer accepted."""
    version = "client.authentication.k8s.io/v1"
    token, plugin = tmp_path / "token", tmp_path / "plugin"
    answer = f'{{"kind":"ExecCredential","apiVersion":"{version}","status":{{"token":"%s"}}}}'
    plugin.write_text(f"#!/bin/sh\nprintf '{answer}' $(cat {token}); echo new >{token}\n")
    plugin.chmod(0o755)
    token.write_text("old")
    api.tokens = {"new": "me"}
    access = Access(server=api.url, plugin=ExecSpec(str(plugin), version))
    async with client_for(access) as client:
        await client.read(SERVICES)
    assert [r.headers["Authorization"] for r in api.requests] == ["Bearer old", "Bearer new"]


async def test_the_server_may_ask_for_patience(api: SmallApiServer) -> None:
    api.faults += [
        Fault(status=429, headers=(("Retry-After", "3"),)),
        Fault(status=503, headers=(("Retry-After", "1"),)),
    ]
    async with timed_client(api) as (client, sleeps, observer):
        await client.read(SERVICES)
    assert sleeps.slept == [3.0, 1.0]
    assert [call["code"] for call in observer.of("retried")] == ["429", "503"]
    assert [call["code"] for call in observer.of("requested")] == ["429", "503", "200"]


async def test_patience_has_an_end(api: SmallApiServer) -> None:
    api.faults += [Fault(status=429, headers=(("Retry-After", "1"),))] * 20
    async with timed_client(api) as (client, sleeps, _):
        with pytest.raises(Unavailable, match="429"):
            await client.read(SERVICES)
    assert len(sleeps.slept) == 10


@pytest.mark.parametrize(
    ("code", "header", "details", "expected"),
    [
        (429, "2", 0, 2.0),
        (503, "5", 0, 5.0),
        (429, "", 7, 7.0),
        (429, "", 0, None),
        (500, "", 0, None),
        (409, "2", 0, None),
        (429, "Fri, 31 Dec 1999 23:59:59 GMT", 0, None),
        (429, "100000000", 0, 120.0),
    ],
)
def test_when_to_come_again(code: int, header: str, details: int, expected: float | None) -> None:
    headers = {"Retry-After": header} if header else {}
    status = Status(details=StatusDetails(details)) if details else Status()
    assert retry_after(code, headers, status) == expected


async def test_the_rate_limit_is_shared_by_all_requests(api: SmallApiServer) -> None:
    settings = ClientSettings(qps=2, burst=2)
    async with timed_client(api, settings) as (client, sleeps, observer):
        for _ in range(4):
            await client.read(SERVICES)
    assert sleeps.slept == [0.5, 0.5]
    waits = [call["seconds"] for call in observer.of("rate_limited")]
    assert waits == [0.0, 0.0, 0.5, 0.5]


async def test_requests_are_measured(api: SmallApiServer) -> None:
    observer = RecordedRequests()
    async with client_for(Access(server=api.url), observer) as client:
        body = await client.read(SERVICES)
    host = api.url.removeprefix("http://")
    assert observer.of("requested") == [{"code": "200", "method": "GET", "host": host}]
    assert observer.of("answered") == [{"method": "GET", "host": host, "sent": 0}]
    assert observer.of("received") == [{"method": "GET", "host": host, "size": len(body)}]


async def test_watches_are_counted_but_neither_limited_nor_timed(api: SmallApiServer) -> None:
    """As upstream does: the beginning of a watch is no measure of the server's speed."""
    watch = Request(
        "GET",
        "/api/v1/services",
        query=(("watch", "true"), ("timeoutSeconds", "0")),
        is_stream=True,
    )
    async with timed_client(api, ClientSettings(qps=1, burst=1)) as (client, sleeps, observer):
        for _ in range(3):
            await client.read(watch)
    assert sleeps.slept == []
    assert len(observer.of("requested")) == 3
    assert observer.of("answered") == observer.of("rate_limited") == []


async def test_no_server_is_no_answer_and_is_measured() -> None:
    observer = RecordedRequests()
    async with SmallApiServer().serving() as gone:
        url = gone.url
    async with client_for(Access(server=url), observer) as client:
        with pytest.raises(Unavailable, match=r"cannot connect to 127\.0\.0\.1"):
            await client.read(SERVICES)
    assert [call["code"] for call in observer.of("requested")] == ["<error>"]


async def test_silence_is_ended(api: SmallApiServer) -> None:
    api.faults.append(Fault(body=b"{", stalls=True))
    async with client_for(Access(server=api.url)) as client:
        with pytest.raises(Unavailable, match="no answer in time"):
            await client.read(Request("GET", "/api/v1/services", idle_seconds=0.2))


async def test_an_exception_of_the_reader_passes_unchanged(api: SmallApiServer) -> None:
    async with client_for(Access(server=api.url)) as client:
        with pytest.raises(OSError, match="mine"):
            async with client.open(SERVICES):
                raise OSError("mine")


def server_context(pki: Pki, name: str = "server", *, asks: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.ca))
    context.load_cert_chain(*pki.pair(name))
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def read_over_tls(
    api: SmallApiServer, context: ssl.SSLContext, tls: Callable[[], Tls]
) -> None:
    async with (
        api.serving(context=context),
        client_for(Access(server=api.url, tls=tls())) as client,
    ):
        await client.read(SERVICES)


async def test_the_configured_authority_is_trusted(pki: Pki) -> None:
    await read_over_tls(SmallApiServer(), server_context(pki), lambda: Tls(ca_file=str(pki.ca)))


async def test_another_authority_is_not_trusted(pki: Pki) -> None:
    with pytest.raises(Unavailable, match=r"not trusted .* set certificate-authority"):
        await read_over_tls(SmallApiServer(), server_context(pki), Tls)


async def test_a_certificate_for_another_name_is_explained(pki: Pki) -> None:
    context = server_context(pki, "elsewhere")
    with pytest.raises(Unavailable, match=r"for another name .* set tls-server-name"):
        await read_over_tls(SmallApiServer(), context, lambda: Tls(ca_file=str(pki.ca)))


async def test_the_server_name_can_be_given(pki: Pki) -> None:
    tls = Tls(ca_file=str(pki.ca), server_name="elsewhere.test")
    await read_over_tls(SmallApiServer(), server_context(pki, "elsewhere"), lambda: tls)


async def test_verification_can_be_switched_off(pki: Pki) -> None:
    await read_over_tls(SmallApiServer(), server_context(pki), lambda: Tls(is_insecure=True))


async def test_a_client_certificate_is_shown(pki: Pki) -> None:
    certificate, key = pki.pair("client")
    shown = Tls(ca_file=str(pki.ca), cert_file=str(certificate), key_data=key.read_bytes())
    await read_over_tls(SmallApiServer(), server_context(pki, asks=True), lambda: shown)
    with pytest.raises(Unavailable, match="api/v1/services"):
        hidden = Tls(ca_file=str(pki.ca))
        await read_over_tls(SmallApiServer(), server_context(pki, asks=True), lambda: hidden)


async def test_a_proxy_is_asked_for_a_tunnel(pki: Pki) -> None:
    """The proxy of the kubeconfig carries the connection; TLS goes through it to the server."""
    asked: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        port = int(asked[-1].split(b" ")[1].rpartition(b":")[2])
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
        writer.close()

    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    api = SmallApiServer()
    async with proxy, api.serving(context=server_context(pki)):
        access = Access(
            server=api.url, tls=Tls(ca_file=str(pki.ca)), proxy_url=f"http://127.0.0.1:{port}"
        )
        async with client_for(access) as client:
            await client.read(SERVICES)
    assert asked == [f"CONNECT {api.url.removeprefix('https://')} HTTP/1.1".encode()]


def test_credentials_that_cannot_work_are_refused_before_the_first_request(pki: Pki) -> None:
    access = Access(server="https://x", tls=Tls(ca_data=b"rubbish"))
    with pytest.raises(ConfigError, match="unable to load root certificates"):
        connect(access, observer=RecordedRequests(), environment={})
