"""The small API server and the real one, asked the same, answer the same.

Each conversation is written once and held with both; only names, event types, codes and reasons are
compared, because versions, defaults and times are each server's own.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest
from tests.support.recorded import RecordedRequests
from tests.support.waiting import LIMIT_SECONDS, until_async

from kpctl.apiserver.admin import SERVICES, ApiAdmin, Json, service
from kpctl.apiserver.real import ADMIN_TOKEN, NOBODY_TOKEN, RealApiServer
from kpctl.apiserver.small import SmallApiServer
from kubeproxy.api.auth.access import Access
from kubeproxy.api.client import Client, ClientSettings, connect
from kubeproxy.api.problems import Refused
from kubeproxy.api.transport import Request
from kubeproxy.errors import ApiError

pytestmark = [pytest.mark.api, pytest.mark.timeout(1800)]

ALL_SERVICES = "/api/v1/services"
OTHER_PROXY = "service.kubernetes.io/service-proxy-name"
SELECTORS = (("labelSelector", f"!{OTHER_PROXY},agree"), ("fieldSelector", "spec.clusterIP!=None"))
NAMES = ("agree-a", "agree-b", "agree-c")
PATIENTLY = ("timeoutSeconds", f"{LIMIT_SECONDS:.0f}")
"""A watch ends with the event that is waited for, and not with the patience of its server."""

Pairs = tuple[tuple[str, str], ...]


class Speaker:
    """One side of the comparison."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._clients: list[Client] = []

    def client(self, token: str = ADMIN_TOKEN) -> Client:
        access = Access(server=self.access.server, tls=self.access.tls, token=token)
        made = connect(
            access,
            observer=RecordedRequests(),
            settings=ClientSettings(qps=-1),
            environment={},
        )
        self._clients.append(made)
        return made

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


Conversation = Callable[[Speaker], Awaitable[object]]


def labelled(name: str) -> Json:
    return service(name, labels={"agree": "yes"}, clusterIP=f"10.96.7.{ord(name[-1])}")


@asynccontextmanager
async def services_of(speaker: Speaker) -> AsyncIterator[ApiAdmin]:
    admin = ApiAdmin(speaker.client())
    for name in NAMES:
        await admin.create(SERVICES, labelled(name))
    try:
        yield admin
    finally:
        for name in NAMES:
            await admin.delete(f"{SERVICES}/{name}")


async def failure(asked: Awaitable[object]) -> tuple[str, str]:
    """The kind of the exception, and its text without the numbers that are each server's own."""
    try:
        await asked
    except ApiError as error:
        code = str(error.code) if isinstance(error, Refused) else ""
        return f"{type(error).__name__} {code}", re.sub(r"\d{2,}", "N", str(error))
    return "", ""


async def talk_about_single_objects(speaker: Speaker) -> object:
    async with services_of(speaker) as admin:
        got = await admin.get(f"{SERVICES}/agree-a")
        twice = await failure(admin.create(SERVICES, service("agree-a")))
        missing = await failure(admin.get(f"{SERVICES}/nothing"))
        nowhere = await failure(admin.get("/api/v1/nonsense"))
        metadata = got["metadata"]
        assert isinstance(metadata, dict)
        return metadata["name"], metadata["namespace"], twice[0], missing, nowhere[0]


async def listed(client: Client, *query: tuple[str, str]) -> tuple[list[str], str, Json]:
    answer = json.loads(await client.read(Request("GET", ALL_SERVICES, query=(*SELECTORS, *query))))
    names = [item["metadata"]["name"] for item in answer["items"]]
    return names, answer["metadata"].get("continue", ""), answer["metadata"]


async def talk_about_lists(speaker: Speaker) -> object:
    async with services_of(speaker) as admin:
        client = admin.client
        everything = (await listed(client))[0]
        names, token, meta = await listed(client, ("limit", "2"))
        rest, end, _ = await listed(client, ("limit", "2"), ("continue", token))
        cached, cached_token, _ = await listed(client, ("limit", "2"), ("resourceVersion", "0"))
        bad = await failure(listed(client, ("limit", "2"), ("continue", "rubbish")))
        return everything, names, bool(token), sorted(meta), rest, end, cached, cached_token, bad[0]


async def watched(client: Client, *query: tuple[str, str], until: str) -> list[tuple[str, str]]:
    """The types and names of events, up to a certain one."""
    seen: list[tuple[str, str]] = []
    asked = (*SELECTORS, ("watch", "true"), ("allowWatchBookmarks", "true"), *query)
    async with client.open(Request("GET", ALL_SERVICES, query=asked)) as answer:
        rest = b""
        async for chunk in answer.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            for event in map(describe, map(json.loads, lines)):
                # A real server sends plain bookmarks when it likes, also among initial events.
                if event == ("BOOKMARK", ""):
                    continue
                seen.append(event)
                if " ".join(seen[-1]) == until:
                    return seen
    return seen


def describe(event: Json) -> tuple[str, str]:
    item = event["object"]
    assert isinstance(item, dict)
    if event["type"] == "ERROR":
        return "ERROR", f"{item['code']} {item['reason']} {item['kind']}"
    if event["type"] == "BOOKMARK":
        return "BOOKMARK", ",".join(item["metadata"].get("annotations", {}))
    return str(event["type"]), item["metadata"]["name"]


async def talk_about_streaming_lists(speaker: Speaker) -> object:
    async with services_of(speaker) as admin:
        seen = await watched(
            admin.client,
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
            PATIENTLY,
            until="BOOKMARK k8s.io/initial-events-end",
        )
        return sorted(seen[:-1]), seen[-1]


async def talk_about_changes(speaker: Speaker) -> object:
    async with services_of(speaker) as admin:
        version = (await listed(admin.client))[2]["resourceVersion"]
        path = f"{SERVICES}/agree-a"
        await admin.patch(path, {"metadata": {"labels": {"more": "x"}}})
        await admin.patch(path, {"metadata": {"labels": {"more": "x"}}})
        await admin.patch(path, {"metadata": {"labels": {OTHER_PROXY: ""}}})
        await admin.patch(path, {"metadata": {"labels": {"more": "y"}}})
        await admin.patch(path, {"metadata": {"labels": {OTHER_PROXY: None}}})
        await admin.delete(f"{SERVICES}/agree-b")
        return await watched(
            admin.client,
            ("resourceVersion", str(version)),
            PATIENTLY,
            until="DELETED agree-b",
        )


async def talk_about_a_watch_without_version(speaker: Speaker) -> object:
    async with services_of(speaker) as admin:
        await listed(admin.client)  # after which the cache that answers has all
        query = (("resourceVersion", "0"), PATIENTLY)
        watching = asyncio.create_task(watched(admin.client, *query, until="MODIFIED agree-a"))
        numbers = count()

        async def has_seen_a_change() -> bool:
            labels = {"more": str(next(numbers))}
            await admin.patch(f"{SERVICES}/agree-a", {"metadata": {"labels": labels}})
            return watching.done()

        await until_async(has_seen_a_change)
        return sorted(await watching)


async def talk_about_permissions(speaker: Speaker) -> object:
    stranger = ApiAdmin(speaker.client("wrong"))
    nobody = ApiAdmin(speaker.client(NOBODY_TOKEN))
    return (
        await failure(stranger.get(ALL_SERVICES)),
        await failure(nobody.get(ALL_SERVICES)),
        await failure(nobody.get("/apis/discovery.k8s.io/v1/endpointslices?watch=true")),
    )


@pytest.fixture
async def real_speaker(real: RealApiServer) -> AsyncIterator[Speaker]:
    speaker = Speaker(real.access())
    yield speaker
    await speaker.close()


@pytest.fixture
async def small_speaker() -> AsyncIterator[Speaker]:
    small = SmallApiServer()
    small.tokens = {ADMIN_TOKEN: "admin", NOBODY_TOKEN: "nobody"}
    small.unprivileged = {"nobody"}
    async with small.serving():
        speaker = Speaker(Access(server=small.url))
        yield speaker
        await speaker.close()


@pytest.mark.parametrize(
    "conversation",
    [
        talk_about_single_objects,
        talk_about_lists,
        talk_about_streaming_lists,
        talk_about_changes,
        talk_about_a_watch_without_version,
        talk_about_permissions,
    ],
    ids=lambda conversation: conversation.__name__,
)
async def test_the_small_server_answers_as_the_real_one(
    real_speaker: Speaker, small_speaker: Speaker, conversation: Conversation
) -> None:
    assert await conversation(small_speaker) == await conversation(real_speaker)


async def test_the_small_server_forgets_like_the_real_one(real: RealApiServer) -> None:
    """A version from before a restart is answered with an event, not with an HTTP error."""
    small = SmallApiServer()
    async with small.serving():
        small.store.create("services", "default", labelled("agree-a"))
        small.store.compact()
        from_small = await forgotten(Speaker(Access(server=small.url)))
    real.kill_server()
    real.start_server()
    assert from_small == await forgotten(Speaker(real.access()))


async def test_pages_of_a_forgotten_version_expire_like_the_real_ones(real: RealApiServer) -> None:
    """The list began before a compaction and a restart, and wants to go on after them.

    Without the restart the real server still has the pages in its cache.
    """

    def forget() -> None:
        real.compact()
        real.kill_server()
        real.start_server()

    small = SmallApiServer()
    async with small.serving():
        from_small = await interrupted_list(Speaker(Access(server=small.url)), small.store.compact)
    assert from_small == await interrupted_list(Speaker(real.access()), forget)


async def interrupted_list(speaker: Speaker, compact: Callable[[], None]) -> object:
    try:
        async with services_of(speaker) as admin:
            token = (await listed(admin.client, ("limit", "1")))[1]
            await admin.patch(f"{SERVICES}/agree-a", {"metadata": {"labels": {"more": "z"}}})
            compact()
            return (await failure(listed(admin.client, ("limit", "1"), ("continue", token))))[0]
    finally:
        await speaker.close()


async def forgotten(speaker: Speaker) -> object:
    try:
        query = (("resourceVersion", "1"), PATIENTLY)
        return await watched(speaker.client(), *query, until="")
    finally:
        await speaker.close()
