"""Bad days of an API server: away for hours, slow, cut off at any byte, credentials that expire.

Whatever happens, what was announced stays until a complete list omits it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain, count, repeat
from pathlib import Path

import pytest
from tests.support.engine_kit import FakeClock
from tests.support.recorded import RecordedRequests
from tests.support.reflecting import PAGES, Inbox, service
from tests.support.relay import Relay
from tests.support.waiting import until
from tests.support.watch_bytes import bookmark, fed, line, listed, page, raw

from kpctl.apiserver.pki import Pki, openssl
from kpctl.apiserver.small import SmallApiServer
from kubeproxy.api.auth.access import Access, Tls
from kubeproxy.api.client import ClientSettings, connect
from kubeproxy.api.reflector import Reflector, ReflectorSettings
from kubeproxy.api.resources import resource_for
from kubeproxy.api.source import Delete, Kind, Synced, Upsert
from kubeproxy.api.watch import Garbled

STREAMS = ReflectorSettings()
BOTH = pytest.mark.parametrize("settings", [PAGES, STREAMS], ids=["pages", "streams"])
HOUR = 3600.0


class Hours(Inbox):
    """An inbox whose sleeps are over at once and move a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)
        await asyncio.sleep(0)


@asynccontextmanager
async def following(access: Access, settings: ReflectorSettings = STREAMS) -> AsyncIterator[Hours]:
    inbox = Hours()
    client = connect(
        access, observer=RecordedRequests(), settings=ClientSettings(qps=-1), environment={}
    )
    reflector = Reflector(
        client,
        resource_for(Kind.SERVICE, "node"),
        inbox,
        settings=settings,
        clock=inbox.clock.monotonic,
        rand=lambda: 0.5,
        sleep=inbox.sleep,
    )
    task = asyncio.create_task(reflector.run())
    try:
        yield inbox
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


def port_of(api: SmallApiServer) -> int:
    return int(api.url.rpartition(":")[2])


# --- away for hours ---


@BOTH
async def test_hours_without_a_server_and_another_one_afterwards(
    settings: ReflectorSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes back with other objects and other versions, as from another cluster's backup.

    Meanwhile nothing is deleted, requests are a few per minute, and so are log lines.
    """
    first = SmallApiServer()
    for name in ("a", "b", "c"):
        first.store.create("services", "ns", service(name))
    async with first.serving():
        here = Access(server=first.url)
        following_it = following(here, settings)
        inbox = await following_it.__aenter__()
        await until(lambda: inbox.syncs)
    with caplog.at_level(logging.ERROR, "kubeproxy"):
        began = inbox.clock.now
        await until(lambda: inbox.clock.now - began > 6 * HOUR)
    minutes = (inbox.clock.now - began) / 60
    assert sorted(inbox.held) == ["a", "b", "c"] and inbox.count(Delete) == 0
    assert len(inbox.slept) < 3 * minutes
    assert 1 <= len(caplog.records) <= 2 * minutes
    second = SmallApiServer()
    second.store.create("services", "ns", service("b", ip="10.9.9.9"))
    second.store.create("services", "ns", service("z"))
    assert second.store.version < first.store.version
    async with second.serving(port=port_of(first)):
        await until(lambda: inbox.held == {"b": "10.9.9.9", "z": "10.0.0.1"})
        assert {e.name for e in inbox.events if isinstance(e, Delete)} == {"a", "c"}
        await second.create("services", "ns", service("new"))
        await until(lambda: "new" in inbox.held)
        await following_it.__aexit__(None, None, None)


# --- slow, and cut ---


@BOTH
@pytest.mark.parametrize("piece", [1, 7])
async def test_a_server_that_sends_byte_by_byte(
    api: SmallApiServer, settings: ReflectorSettings, piece: int
) -> None:
    for number in range(20):
        await api.create("services", "ns", service(f"s{number}"))
    async with (
        Relay(api.url, piece=piece).serving() as relay,
        following(Access(server=relay.url), settings) as inbox,
    ):
        await until(lambda: len(inbox.held) == 20 and inbox.syncs)
        await api.delete("services", "ns", "s3")
        await until(lambda: len(inbox.held) == 19)


@BOTH
async def test_every_response_cut_at_every_byte(
    api: SmallApiServer, settings: ReflectorSettings
) -> None:
    """Each next connection lives one byte longer, until a whole list comes through, then a watch.

    The one delete comes with the complete list, and only then.
    """
    for name in ("a", "b", "c"):
        await api.create("services", "ns", service(name))
    async with (
        Relay(api.url).serving() as relay,
        following(Access(server=relay.url), settings) as inbox,
    ):
        await until(lambda: inbox.syncs)
        relay.limits = map(float, count())
        api.store.delete("services", "ns", "b")
        api.store.create("services", "ns", service("d"))
        api.store.compact()
        api.end_watches()
        await until(lambda: inbox.syncs == 2 or inbox.count(Delete))
        assert sorted(inbox.held) == ["a", "c", "d"] and inbox.count(Delete) == 1
        size = relay.cuts
        assert size > 500  # bytes of a response, its head included
        relay.limits = map(float, chain(range(2 * size), repeat(math.inf)))
        await api.delete("services", "ns", "a")
        await api.create("services", "ns", service("e"))
        api.end_watches()
        await until(lambda: sorted(inbox.held) == ["c", "d", "e"])
        assert inbox.count(Delete) == 2


def test_no_part_of_a_page_is_a_page() -> None:
    """Also where neither a length nor an end of chunks shows that it is not whole."""
    body = page(raw("a"), raw("b"))
    for end in range(len(body)):
        one = listed("x")
        one.begin_list()
        events = fed(one, body[:end]).events
        assert [type(event) for event in events] == [Garbled]


def test_no_part_of_a_stream_is_more_than_its_whole_lines() -> None:
    lines = (line("ADDED", raw("a")), line("DELETED", raw("x")), bookmark("9", ends=True))
    whole = b"".join(lines)
    for end in range(len(whole)):
        one = listed("x")
        one.begin_list()
        events = one.feed(whole[:end])
        assert [type(event) for event in events] == [Upsert, Delete, Synced][: len(events)]
        assert len(events) == whole[:end].count(b"\n")


# --- credentials that expire in the middle of a watch ---


@BOTH
async def test_a_token_that_expires_in_the_middle_of_a_watch(
    api: SmallApiServer, settings: ReflectorSettings, tmp_path: Path
) -> None:
    """Refused until the file has another one; then the watch goes on, without another list."""
    token = tmp_path / "token"
    token.write_text("old")
    api.tokens = {"old": "proxy"}
    await api.create("services", "ns", service("a"))
    async with following(Access(server=api.url, token_file=str(token)), settings) as inbox:
        await until(lambda: inbox.syncs)
        api.tokens = {"new": "proxy"}
        api.end_watches()
        refused = len(api.requests) + 3
        await until(lambda: len(api.requests) >= refused)
        await api.create("services", "ns", service("b"))
        assert sorted(inbox.held) == ["a"] and inbox.count(Delete) == 0
        token.write_text("new")
        await until(lambda: sorted(inbox.held) == ["a", "b"])
        assert inbox.syncs == 1 and inbox.count(Delete) == 0


def expired(pki: Pki, name: str, subject: str, extension: str) -> None:
    """Make a certificate of this authority whose time was over yesterday."""
    certificate, key = pki.pair(name)
    request = pki.folder / f"{name}.csr"
    openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", str(key), "-out", str(request), "-subj", subject, "-addext", extension),
    )
    openssl(
        *("x509", "-req", "-in", str(request), "-out", str(certificate), "-days", "-1"),
        *("-CA", str(pki.ca), "-CAkey", str(pki.folder / "ca.key"), "-copy_extensions", "copyall"),
    )


def server_context(pki: Pki, name: str, *, asks: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.ca))
    context.load_cert_chain(*pki.pair(name))
    context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    return context


async def test_a_server_whose_certificate_expires(
    pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    expired(pki, "late", "/CN=server", "subjectAltName=IP:127.0.0.1")
    api = SmallApiServer()
    api.store.create("services", "ns", service("a"))
    async with api.serving(context=server_context(pki, "server")):
        following_it = following(Access(server=api.url, tls=Tls(ca_file=str(pki.ca))))
        inbox = await following_it.__aenter__()
        await until(lambda: inbox.syncs)
    with caplog.at_level(logging.ERROR, "kubeproxy"):
        async with api.serving(port=port_of(api), context=server_context(pki, "late")):
            slept = len(inbox.slept)
            await until(lambda: len(inbox.slept) > slept + 3)
            assert not [seen for seen in api.requests if seen.is_watch][1:]
    assert "certificate has expired" in str([vars(record) for record in caplog.records])
    assert inbox.count(Delete) == 0
    api.store.create("services", "ns", service("b"))
    async with api.serving(port=port_of(api), context=server_context(pki, "server")):
        await until(lambda: sorted(inbox.held) == ["a", "b"])
        assert inbox.syncs == 1
        await following_it.__aexit__(None, None, None)


async def test_a_client_certificate_that_expires_is_replaced(pki: Pki, tmp_path: Path) -> None:
    """Refused by the server until the files hold another one, which is noticed."""
    expired(pki, "past", "/O=nodes/CN=alice", "extendedKeyUsage=clientAuth")
    pair = tmp_path / "client.crt", tmp_path / "client.key"

    def install(name: str) -> None:
        for source, target in zip(pki.pair(name), pair, strict=True):
            fresh = target.with_suffix(".new")
            fresh.write_bytes(source.read_bytes())
            fresh.rename(target)

    install("client")
    api = SmallApiServer()
    api.store.create("services", "ns", service("a"))
    context = server_context(pki, "server", asks=True)
    tls = Tls(ca_file=str(pki.ca), cert_file=str(pair[0]), key_file=str(pair[1]))
    async with api.serving(context=context):
        following_it = following(Access(server=api.url, tls=tls))
        inbox = await following_it.__aenter__()
        await until(lambda: inbox.syncs)
        install("past")
    async with api.serving(port=port_of(api), context=context):
        slept, seen = len(inbox.slept), len(api.requests)
        await until(lambda: len(inbox.slept) > slept + 3)
        assert len(api.requests) == seen and inbox.count(Delete) == 0
        api.store.create("services", "ns", service("b"))
        install("client2")
        await until(lambda: sorted(inbox.held) == ["a", "b"])
        assert inbox.syncs == 1
        await following_it.__aexit__(None, None, None)
