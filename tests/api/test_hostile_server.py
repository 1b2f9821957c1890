"""Responses without end, and servers that repeat themselves: bounded memory, log and requests."""

from __future__ import annotations

import json
import logging
import zlib

import pytest
from tests.support.reflecting import (
    PAGES,
    client_of,
    continues,
    lists,
    reflecting,
    service,
    watching,
)
from tests.support.waiting import until

from kpctl.apiserver.small import Fault, SmallApiServer
from kubeproxy.api import client as client_module
from kubeproxy.api import reflector as reflector_module
from kubeproxy.api import transport as transport_module
from kubeproxy.api import watch as watch_module
from kubeproxy.api.problems import api_error
from kubeproxy.api.source import Kind
from kubeproxy.api.transport import Request, TooLarge
from kubeproxy.api.watch import Garbled, Status, Tracker
from kubeproxy.errors import Unavailable

LIST = Request("GET", "/api/v1/services")
MANY = 100_000


def line(type_: str, version: str) -> bytes:
    event = {"type": type_, "object": {"metadata": {"resourceVersion": version}}}
    return json.dumps(event).encode() + b"\n"


def test_a_watch_line_without_end_is_given_up() -> None:
    tracker = Tracker(Kind.SERVICE)
    chunk = bytes(1 << 20)
    for _ in range(watch_module.MOST_LINE_BYTES // len(chunk)):
        assert tracker.feed(chunk) == []
    (event,) = tracker.feed(chunk)
    assert isinstance(event, Garbled)
    assert "16777216 bytes" in event.reason


def test_lines_together_may_be_longer() -> None:
    tracker = Tracker(Kind.SERVICE)
    for number in range(3):
        tracker.feed(b" " * (watch_module.MOST_LINE_BYTES - 1000))
        tracker.feed(line("BOOKMARK", str(number)))
    assert tracker.resource_version == "2"


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_a_body_that_is_too_large_is_not_read(
    api: SmallApiServer, monkeypatch: pytest.MonkeyPatch, is_compressed: bool
) -> None:
    monkeypatch.setattr(transport_module._HttpResponse.read, "__defaults__", (MANY - 1,))
    body, headers = bytes(MANY), (("Content-Encoding", "gzip"),)
    if is_compressed:
        body = zlib.compress(body, wbits=31)
        assert len(body) < 1000
    api.faults.append(Fault(body=body, headers=headers if is_compressed else ()))
    async with client_of(api) as client:
        with pytest.raises(TooLarge, match="more than 99999 bytes"):
            await client.read(LIST)
        assert await client.read(LIST)


async def test_of_an_error_page_without_end_only_the_code_counts(
    api: SmallApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MOST_STATUS_BYTES", MANY)
    api.faults.append(Fault(status=500, body=b"x" * (MANY + 1), stalls=True))
    async with client_of(api) as client:
        with pytest.raises(Unavailable, match="500: HTTP status 500"):
            await client.read(LIST)


def test_a_message_of_megabytes_is_cut() -> None:
    error = api_error("GET /x", 500, Status(message="m" * (3 << 20)))
    assert len(str(error)) < 1000


async def test_a_malformed_response_is_named_alike_each_time(api: SmallApiServer) -> None:
    """Otherwise the limit of the log does not recognise it. The query of a watch is random."""
    fault = Fault(headers=(("Content-Encoding", "br"),), body=b"no")
    reasons = set()
    async with client_of(api) as client:
        for seconds in (301, 302):
            api.faults.append(fault)
            query = (("timeoutSeconds", str(seconds)),)
            with pytest.raises(Unavailable) as caught:
                await client.read(Request("GET", "/api/v1/services", query=query))
            reasons.add(str(caught.value))
    (reason,) = reasons
    assert "malformed response" in reason and "timeoutSeconds" not in reason


@pytest.mark.parametrize("tokens", [["same"] * 30, [str(n) for n in range(30)]])
async def test_a_list_without_a_last_page_is_given_up(
    api: SmallApiServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tokens: list[str],
) -> None:
    monkeypatch.setattr(reflector_module, "MOST_PAGES", 10)
    for token in tokens:
        metadata = {"resourceVersion": "1", "continue": token}
        page = {"kind": "ServiceList", "metadata": metadata, "items": []}
        api.faults.append(Fault(body=json.dumps(page).encode(), applies=lists))
    with caplog.at_level(logging.INFO):
        async with reflecting(api, PAGES) as inbox:
            await until(lambda: inbox.syncs)
            assert inbox.slept
    assert "the list has no last page" in str([vars(record) for record in caplog.records])


async def test_watches_that_bring_something_and_end_do_not_follow_without_a_pause(
    api: SmallApiServer,
) -> None:
    await api.create("services", "d", service("a"))
    for version in range(100, 110):
        api.faults.append(Fault(body=line("BOOKMARK", str(version)), applies=continues))
    async with reflecting(api, PAGES, clock=lambda: 0.0) as inbox:
        await until(watching(api, 10))
        assert len(inbox.slept) >= 9
        assert all(0 < seconds <= PAGES.short_watch_seconds for seconds in inbox.slept[:9])
