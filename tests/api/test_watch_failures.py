"""Lists and watches that fail after the start: what the log shows, and how often."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from tests.support.logged import Log, Logging
from tests.support.recorded import RecordedRequests
from tests.support.reflecting import (
    PAGES,
    Inbox,
    client_of,
    continues,
    lists,
    reflecting,
    streams,
    watching,
)
from tests.support.waiting import until

from kpctl.apiserver.small import Fault, SmallApiServer
from kubeproxy.api.api_server import ApiServerOptions, ApiServerSource
from kubeproxy.api.reflector import Reflector
from kubeproxy.api.resources import resource_for
from kubeproxy.api.source import Kind


def failures(log: Log) -> list[str]:
    return log.lines('"Failed to watch"')


def status(code: int, message: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": message}).encode()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (401, "check the token or client certificate"),
        (403, "bind a ClusterRole"),
        (500, "the server cannot answer now"),
        (503, "the server cannot answer now"),
        (429, "the server asks for patience"),
    ],
)
async def test_a_refused_watch_is_logged_with_its_meaning(
    api: SmallApiServer,
    logging: Logging,
    code: int,
    remedy: str,
) -> None:
    fault = Fault(status=code, body=status(code, "no, sorry"), applies=continues)
    api.faults.extend([fault] * 4)
    with logging() as log:
        async with reflecting(api, PAGES) as inbox:
            await until(lambda: inbox.syncs and len(inbox.slept) >= 4 and not api.faults)
    (line,) = failures(log)
    assert line.startswith("E")
    assert "no, sorry" in line and remedy in line
    assert 'type="Service"' in line
    assert "rules stay as they are; changes are not seen" in line


async def test_an_outage_is_logged_once_per_minute_and_reason(logging: Logging) -> None:
    api = SmallApiServer()
    with logging() as log:
        async with api.serving():
            context = reflecting(api)
            inbox = await context.__aenter__()
            await until(lambda: inbox.syncs)
        await until(lambda: len(inbox.slept) >= 6)
        await context.__aexit__(None, None, None)
    (line,) = failures(log)
    assert "cannot connect to 127.0.0.1" in line


async def test_before_the_first_list_the_log_says_that_nothing_is_programmed(
    api: SmallApiServer, logging: Logging
) -> None:
    api.forbidden = {("list", "services"), ("watch", "services")}
    with logging() as log:
        async with reflecting(api) as inbox:
            await until(lambda: len(inbox.slept) >= 4)
    (line,) = failures(log)
    assert "nothing is programmed before the first list" in line


async def test_a_connection_that_breaks_off_is_no_failure(
    api: SmallApiServer, logging: Logging
) -> None:
    api.faults.extend([Fault(breaks=True, applies=continues)] * 3)
    with logging() as log:
        async with reflecting(api, PAGES):
            await until(watching(api, 4))
    assert failures(log) == []


async def test_the_same_reason_is_logged_again_after_a_minute(
    api: SmallApiServer, logging: Logging
) -> None:
    api.forbidden = {("list", "services"), ("watch", "services")}
    with logging() as log:
        await fail_for_hours(Kind.SERVICE, api)
    assert len(failures(log)) >= 3


async def test_a_server_without_service_cidrs_is_named_once(
    api: SmallApiServer, logging: Logging
) -> None:
    api.faults.extend([Fault(status=404, body=status(404, "not here"))] * 20)
    with logging() as log:
        await fail_for_hours(Kind.SERVICE_CIDR, api)
    (line,) = failures(log)
    assert "not here" in line and "all else goes on" in line


async def fail_for_hours(kind: Kind, api: SmallApiServer) -> None:
    """Let a reflector fail some times in a row, with hours between them."""
    inbox, hours = Inbox(), itertools.count(0.0, 3600.0)
    async with client_of(api) as client:
        reflector = Reflector(
            client,
            resource_for(kind, "node"),
            inbox,
            clock=lambda: next(hours),
            rand=lambda: 0.0,
            sleep=inbox.sleep,
        )
        task = asyncio.create_task(reflector.run())
        await until(lambda: len(inbox.slept) >= 4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("gate", [True, False])
async def test_gate_watch_list_client_is_obeyed(api: SmallApiServer, gate: bool) -> None:
    options = ApiServerOptions(master=api.url, streams=gate)
    source = ApiServerSource.open(options, RecordedRequests())
    inbox = Inbox()
    task = asyncio.create_task(source.run(inbox, "n1"))
    await until(lambda: inbox.synced() == set(Kind))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await source.close()
    assert any(map(streams, api.requests)) is gate
    assert any(map(lists, api.requests)) is not gate


def test_pages_are_the_default() -> None:
    """Decision 0103: they are compressed."""
    assert not ApiServerOptions().streams
