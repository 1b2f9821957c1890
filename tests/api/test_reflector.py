"""The loop around lists and watches, against the fake API server and its faults."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kpctl.apiserver.small import FakeApi, Fault, SeenRequest
from kpctl.apiserver.store import Json, Selector
from kubeproxy.api.api_source import ApiSource
from kubeproxy.api.auth.access import Access
from kubeproxy.api.client import Client, ClientSettings, connect
from kubeproxy.api.objects import Service
from kubeproxy.api.reflector import Reflector, ReflectorSettings
from kubeproxy.api.resources import resource_for
from kubeproxy.api.source import Delete as DeleteMessage
from kubeproxy.api.source import Event as Message
from kubeproxy.api.source import Kind
from kubeproxy.api.source import Synced as SyncedMessage
from kubeproxy.api.source import Undecodable as UndecodableMessage
from kubeproxy.api.source import Upsert as UpsertMessage
from kubeproxy.api.watch import Delete, Event, Progress, Synced, Tracked, Undecodable, Upsert

Until = Callable[[Callable[[], object]], "asyncio.Future[None]"]


def service(name: str, *, ip: str = "10.0.0.1", **labels: str) -> Json:
    return {
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"clusterIP": ip, "ports": [{"port": 80}]},
    }


class Sink:
    """What a reflector delivered, and what its receiver therefore holds."""

    def __init__(self) -> None:
        self.events: list[Event[Tracked]] = []
        self.held: dict[str, str] = {}
        self.syncs = 0
        self.slept: list[float] = []

    def deliver(self, event: Event[Tracked]) -> None:
        self.events.append(event)
        if isinstance(event, Upsert):
            assert isinstance(event.object, Service)
            self.held[event.object.metadata.name] = event.object.spec.cluster_ip or ""
        elif isinstance(event, Delete):
            del self.held[event.key.name]
        elif isinstance(event, Synced):
            self.syncs += 1

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0.01)

    def count(self, type_: type) -> int:
        return sum(isinstance(event, type_) for event in self.events)


@asynccontextmanager
async def client_of(fake: FakeApi) -> AsyncIterator[Client]:
    client = connect(Access(server=fake.url), settings=ClientSettings(qps=-1), environment={})
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def reflecting(
    fake: FakeApi, settings: ReflectorSettings | None = None
) -> AsyncIterator[Sink]:
    sink = Sink()
    async with client_of(fake) as client:
        reflector = Reflector(
            client,
            resource_for(Kind.SERVICE, "node"),
            sink.deliver,
            settings=settings or ReflectorSettings(),
            rand=lambda: 0.0,
            sleep=sink.sleep,
        )
        task = asyncio.create_task(reflector.run())
        try:
            yield sink
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def streams(seen: SeenRequest) -> bool:
    return seen.query.get("sendInitialEvents") == "true"


def lists(seen: SeenRequest) -> bool:
    return not seen.is_watch


def continues(seen: SeenRequest) -> bool:
    return seen.is_watch and not streams(seen)


def watching(fake: FakeApi, number: int = 1) -> Callable[[], bool]:
    """Have at least so many plain watches arrived?"""
    return lambda: sum(map(continues, fake.requests)) >= number


PAGES = ReflectorSettings(streams=False, page_size=2)


async def test_a_streaming_list_is_asked_for_as_upstream_does(fake: FakeApi, until: Until) -> None:
    await fake.create("services", "ns", service("a"))
    async with reflecting(fake) as sink:
        await until(lambda: sink.syncs)
        assert sink.held == {"a": "10.0.0.1"}
    assert [request.query for request in fake.requests] == [
        {
            "labelSelector": "!service.kubernetes.io/service-proxy-name",
            "fieldSelector": "spec.clusterIP!=None",
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "300",
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "resourceVersion": "",
        }
    ]


async def test_changes_follow_in_the_same_stream(fake: FakeApi, until: Until) -> None:
    async with reflecting(fake) as sink:
        await until(lambda: sink.syncs)
        await fake.create("services", "ns", service("a"))
        await fake.create("services", "ns", service("hidden", ip="None"))
        await until(lambda: sink.held == {"a": "10.0.0.1"})
        await fake.patch("services", "ns", "a", {"spec": {"clusterIP": "10.0.0.2"}})
        await until(lambda: sink.held == {"a": "10.0.0.2"})
        await fake.delete("services", "ns", "a")
        await until(lambda: sink.held == {})
    assert len(fake.requests) == 1


async def test_an_object_that_leaves_the_selection_is_deleted(fake: FakeApi, until: Until) -> None:
    await fake.create("services", "ns", service("a"))
    label = "service.kubernetes.io/service-proxy-name"
    async with reflecting(fake) as sink:
        await until(lambda: sink.held)
        await fake.patch("services", "ns", "a", {"metadata": {"labels": {label: ""}}})
        await until(lambda: not sink.held)
        await fake.patch("services", "ns", "a", {"metadata": {"labels": {label: None}}})
        await until(lambda: sink.held)


async def test_where_streaming_lists_are_refused_pages_are_fetched(
    fake: FakeApi, until: Until
) -> None:
    fake.has_streaming_lists = False
    await fake.create("services", "ns", service("a"))
    async with reflecting(fake) as sink:
        await until(watching(fake))
        assert sink.held == {"a": "10.0.0.1"}
    queries = [request.query for request in fake.requests]
    assert queries[1] == {
        "labelSelector": "!service.kubernetes.io/service-proxy-name",
        "fieldSelector": "spec.clusterIP!=None",
        "limit": "500",
        "resourceVersion": "0",
    }
    assert queries[2]["resourceVersion"] == str(fake.store.version)
    assert queries[2]["allowWatchBookmarks"] == "true"
    assert sink.slept == []


@pytest.mark.parametrize(
    "fault",
    [
        Fault(body=b"", stalls=True, applies=streams),
        Fault(body=b'{"type":"ADDED","obj', stalls=True, applies=streams),
        Fault(body=b'{"type":"ADDED","obj', breaks=True, applies=streams),
        Fault(body=b"", applies=streams),
        Fault(status=500, applies=streams),
        Fault(body=b'{"type":"ERROR","object":{"code":500}}\n', applies=streams),
        Fault(body=b"<html>\n", applies=streams),
    ],
    ids=["silent", "half a line", "broken", "ended", "refused", "failed", "garbled"],
)
async def test_a_streaming_list_that_does_not_end_is_given_up_for_pages(
    fake: FakeApi, until: Until, fault: Fault
) -> None:
    await fake.create("services", "ns", service("a"))
    fake.faults.append(fault)
    async with reflecting(fake, ReflectorSettings(stall_seconds=0.2)) as sink:
        await until(lambda: sink.held == {"a": "10.0.0.1"} and sink.syncs == 1)
    assert any(map(lists, fake.requests))
    assert sink.slept == []


async def test_pages_are_fetched_to_the_end_before_anything_counts_as_deleted(
    fake: FakeApi, until: Until
) -> None:
    for name in "abcde":
        await fake.create("services", "ns", service(name))
    fake.faults.append(Fault(status=410, applies=lists))
    async with reflecting(fake, PAGES) as sink:
        await until(lambda: sink.syncs)
        assert sorted(sink.held) == list("abcde")
    queries = [request.query for request in fake.requests if lists(request)]
    assert [("continue" in query, query.get("resourceVersion")) for query in queries] == [
        (False, "0"),
        (False, ""),
        (True, None),
        (True, None),
    ]


async def test_a_list_whose_pages_expire_is_taken_in_one_piece(fake: FakeApi, until: Until) -> None:
    for name in "abcde":
        await fake.create("services", "ns", service(name))
    fake.faults.append(Fault(status=410, applies=lists))
    fake.faults.append(Fault(status=410, applies=lambda seen: "continue" in seen.query))
    async with reflecting(fake, PAGES) as sink:
        await until(lambda: sink.syncs)
        assert sorted(sink.held) == list("abcde")
    last = [request.query for request in fake.requests if lists(request)][-1]
    assert "limit" not in last
    assert last["resourceVersion"] == ""


async def test_a_watch_that_ends_is_continued_from_the_last_version(
    fake: FakeApi, until: Until
) -> None:
    async with reflecting(fake, ReflectorSettings(short_watch_seconds=0.0)) as sink:
        await until(lambda: sink.syncs)
        await fake.create("services", "ns", service("a"))
        await until(lambda: sink.held)
        fake.end_watches()
        await until(watching(fake))
        await fake.create("services", "ns", service("b"))
        await until(lambda: len(sink.held) == 2)
    assert fake.requests[1].query["resourceVersion"] == "2"
    assert (sink.syncs, sink.slept) == (1, [])


async def test_bookmarks_save_a_list(fake: FakeApi, until: Until) -> None:
    """After a bookmark even a compacted history does not cost a list."""
    async with reflecting(fake) as sink:
        await until(lambda: sink.syncs)
        await fake.create("services", "ns", service("hidden", ip="None"))
        await fake.bookmark()
        await until(lambda: sink.count(Progress))
        fake.store.compact()
        fake.end_watches()
        await until(watching(fake))
        await fake.create("services", "ns", service("a"))
        await until(lambda: sink.held)
    assert sink.syncs == 1


async def test_a_forgotten_version_means_a_new_list_that_finds_the_missed_delete(
    fake: FakeApi, until: Until
) -> None:
    for name in "ab":
        await fake.create("services", "ns", service(name))
    async with reflecting(fake) as sink:
        await until(lambda: sink.syncs)
        fake.faults.append(Fault(status=503, applies=continues))
        fake.end_watches()
        await fake.delete("services", "ns", "a")
        fake.store.compact()
        await until(lambda: sink.syncs == 2)
        assert list(sink.held) == ["b"]
    listings = [request.query["resourceVersion"] for request in fake.requests if streams(request)]
    assert listings == ["", "3"], "a list may be newer than what we saw, but not older"


async def test_where_not_even_a_list_has_our_version_any_will_do(
    fake: FakeApi, until: Until
) -> None:
    """As after the storage was restored from a backup."""
    await fake.create("services", "ns", service("a"))
    too_large = b'{"code":504,"message":"Too large resource version: 9, current: 2"}'
    gone = b'{"type":"ERROR","object":{"code":410}}\n'
    async with reflecting(fake, PAGES) as sink:
        await until(watching(fake))
        fake.faults.append(Fault(body=gone, applies=continues))
        fake.faults.append(Fault(status=504, body=too_large, applies=lists))
        fake.end_watches()
        await until(lambda: sink.syncs == 2)
        fake.faults.append(Fault(body=gone, applies=continues))
        fake.end_watches()
        await until(lambda: sink.syncs == 3)
    listings = [request.query["resourceVersion"] for request in fake.requests if lists(request)]
    assert listings == ["0", "2", "", "2"], "and then ours counts again"


async def test_a_stream_the_server_ends_with_its_own_failure_means_a_new_list(
    fake: FakeApi, until: Until
) -> None:
    failed = b'{"type":"ERROR","object":{"code":500,"reason":"InternalError"}}\n'
    fake.faults.append(Fault(body=failed, applies=continues))
    async with reflecting(fake, PAGES) as sink:
        await until(lambda: sink.syncs == 2)


async def test_a_busy_server_ends_a_watch_without_a_new_list(fake: FakeApi, until: Until) -> None:
    busy = b'{"type":"ERROR","object":{"code":429,"reason":"TooManyRequests"}}\n'
    fake.faults.append(Fault(body=busy, applies=continues))
    async with reflecting(fake, PAGES) as sink:
        await until(watching(fake, 2))
    assert (sink.syncs, sink.slept) == (1, [0.8])


async def test_very_short_watches_are_not_repeated_without_a_pause(
    fake: FakeApi, until: Until
) -> None:
    fake.faults += [Fault(applies=continues)] * 3
    async with reflecting(fake, PAGES) as sink:
        await until(watching(fake, 4))
    assert sink.slept == [0.8, 1.6, 3.2]


@pytest.mark.parametrize(
    "body",
    [b"<html>\n", b'{"type":"MODIFIED","object":7}\n{"type"\n', b'{"object":{}}\n'],
    ids=["no JSON", "half JSON", "no type"],
)
async def test_nonsense_in_a_watch_means_a_new_list(
    fake: FakeApi, until: Until, body: bytes
) -> None:
    await fake.create("services", "ns", service("a"))
    fake.faults.append(Fault(body=body, stalls=True, applies=continues))
    async with reflecting(fake, PAGES) as sink:
        await until(lambda: sink.syncs == 2)
        assert sink.held == {"a": "10.0.0.1"}


async def test_unknown_events_and_bad_objects_do_not_disturb(fake: FakeApi, until: Until) -> None:
    lines = [
        {"type": "NEWS", "object": {}},
        {"type": "ADDED", "object": {"metadata": {"name": "x"}, "spec": {"ports": "none"}}},
        {"type": "ADDED", "object": service("good") | {"extra": {"deep": [1]}}},
    ]
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    fake.faults.append(Fault(body=body, stalls=True, applies=continues))
    async with reflecting(fake, PAGES) as sink:
        await until(lambda: sink.held)
    assert sink.count(Undecodable) == 1
    assert sink.slept == []


async def test_reordered_and_repeated_events_end_with_the_last_word(
    fake: FakeApi, until: Until
) -> None:
    one, two = service("a"), service("a", ip="10.0.0.9")
    words = [("MODIFIED", one), ("DELETED", one), ("DELETED", one), ("ADDED", two), ("ADDED", two)]
    body = b"".join(json.dumps({"type": t, "object": o}).encode() + b"\n" for t, o in words)
    fake.faults.append(Fault(body=body, stalls=True, applies=continues))
    async with reflecting(fake, PAGES) as sink:
        await until(lambda: sink.count(Upsert) == 3)
        assert sink.held == {"a": "10.0.0.9"}
        assert sink.count(Delete) == 1


async def test_an_outage_deletes_nothing_and_is_followed_by_what_was_missed(until: Until) -> None:
    fake = FakeApi()
    async with fake.serving():
        url = fake.url
        await fake.create("services", "ns", service("a"))
        await fake.create("services", "ns", service("b"))
        sink_context = reflecting(fake)
        sink = await sink_context.__aenter__()
        await until(lambda: sink.syncs)
    await until(lambda: len(sink.slept) >= 4)
    assert sorted(sink.held) == ["a", "b"]
    assert sink.count(Delete) == 0
    fake.store.delete("services", "ns", "a")
    fake.store.create("services", "ns", service("c"))
    async with fake.serving(port=int(url.rpartition(":")[2])):
        await until(lambda: sorted(sink.held) == ["b", "c"])
        await sink_context.__aexit__(None, None, None)
    assert sink.syncs == 1


async def test_an_outage_at_the_start_is_waited_out(until: Until) -> None:
    fake = FakeApi()
    async with fake.serving():
        url = fake.url
    async with reflecting(fake) as sink:
        await until(lambda: len(sink.slept) >= 2)
        assert sink.events == []
        async with fake.serving(port=int(url.rpartition(":")[2])):
            await until(lambda: sink.syncs)


async def test_a_forbidden_list_is_tried_again_until_allowed(fake: FakeApi, until: Until) -> None:
    fake.forbidden = {("list", "services"), ("watch", "services")}
    async with reflecting(fake) as sink:
        await until(lambda: len(sink.slept) >= 2)
        fake.forbidden = set()
        await until(lambda: sink.syncs)


async def test_the_watch_time_is_random_between_five_and_ten_minutes(
    fake: FakeApi, until: Until
) -> None:
    async with client_of(fake) as client:
        sink = Sink()
        reflector = Reflector(
            client, resource_for(Kind.NODE, "n1"), sink.deliver, rand=lambda: 0.999
        )
        task = asyncio.create_task(reflector.run())
        await until(lambda: sink.syncs)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert fake.requests[0].query["timeoutSeconds"] == "599"
    assert fake.requests[0].query["fieldSelector"] == "metadata.name=n1"


class Inbox:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, event: Message) -> None:
        self.messages.append(event)

    def synced(self) -> set[Kind]:
        return {found.kind for found in self.messages if isinstance(found, SyncedMessage)}


async def test_the_source_delivers_all_four_kinds_to_one_inbox(fake: FakeApi, until: Until) -> None:
    bad: Json = {"metadata": {"name": "bad"}, "addressType": 4}
    await fake.create("services", "ns", service("a"))
    await fake.create("endpointslices", "ns", bad)
    await fake.create("nodes", "", {"metadata": {"name": "n1"}})
    await fake.create("nodes", "", {"metadata": {"name": "n2"}})
    await fake.create("servicecidrs", "", {"metadata": {"name": "kubernetes"}})
    inbox = Inbox()
    async with client_of(fake) as client:
        task = asyncio.create_task(ApiSource(client, node_name="n1").run(inbox))
        await until(lambda: inbox.synced() == set(Kind))
        await fake.delete("services", "ns", "a")
        await until(lambda: DeleteMessage(Kind.SERVICE, "ns", "a") in inbox.messages)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    names = {
        (found.kind, found.object.metadata.name)
        for found in inbox.messages
        if isinstance(found, UpsertMessage)
    }
    assert names == {
        (Kind.SERVICE, "a"),
        (Kind.NODE, "n1"),
        (Kind.SERVICE_CIDR, "kubernetes"),
    }
    bad_ones = [found for found in inbox.messages if isinstance(found, UndecodableMessage)]
    assert [(found.kind, found.name) for found in bad_ones] == [(Kind.ENDPOINT_SLICE, "ns/bad")]


CALAMITIES = (
    Fault(status=500),
    Fault(status=503, headers=(("Retry-After", "0"),)),
    Fault(status=410),
    Fault(status=200, body=b"nonsense\n"),
    Fault(status=200, body=b'{"type":"ADDED","object":{"metadata":{"na', breaks=True),
    Fault(status=200, body=b'{"type":"ERROR","object":{"code":410}}\n'),
    Fault(status=200, body=b'{"type":"ERROR","object":{"code":500}}\n'),
    Fault(status=200, body=b'{"type":"SURPRISE","object":{}}\n'),
    Fault(status=200, body=b""),
)


@pytest.mark.parametrize("seed", range(6))
async def test_after_any_calamities_the_receiver_holds_what_the_server_holds(
    fake: FakeApi, until: Until, seed: int
) -> None:
    dice = random.Random(seed)
    settings = ReflectorSettings(
        streams=bool(seed % 2), page_size=3, stall_seconds=0.1, short_watch_seconds=0.0
    )
    async with reflecting(fake, settings) as sink:
        for _ in range(150):
            await stir(fake, dice)
            if dice.random() < 0.5:
                await asyncio.sleep(0.002)
        fake.faults.clear()
        fake.end_watches()
        await until(lambda: sink.held == served(fake))
        assert sink.count(Undecodable) == 0


async def stir(fake: FakeApi, dice: random.Random) -> None:
    """One change or one calamity."""
    name, ip = f"s{dice.randrange(12)}", f"10.0.0.{dice.randrange(250)}"
    match dice.randrange(10):
        case 0:
            fake.faults.append(dice.choice(CALAMITIES))
        case 1:
            fake.end_watches()
        case 2:
            fake.store.compact()
        case 3:
            await fake.bookmark()
        case 4 | 5:
            if name in served(fake):
                await fake.delete("services", "ns", name)
        case _:
            if name in served(fake):
                await fake.patch("services", "ns", name, {"spec": {"clusterIP": ip}})
            else:
                await fake.create("services", "ns", service(name, ip=ip))


def served(fake: FakeApi) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in fake.store.list("services", Selector()):
        metadata, spec = item["metadata"], item["spec"]
        assert isinstance(metadata, dict)
        assert isinstance(spec, dict)
        found[metadata["name"]] = spec["clusterIP"]
    return found
