"""The loop around lists and watches, against the small API server and its faults."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from tests.support.reflecting import (
    PAGES,
    Inbox,
    client_of,
    continues,
    lists,
    reflecting,
    service,
    streams,
    watching,
)
from tests.support.waiting import until

from kpctl.apiserver.small import Fault, SmallApiServer
from kpctl.apiserver.store import Json, Selector
from kubeproxy.api.api_server import ApiServerSource
from kubeproxy.api.reflector import Reflector, ReflectorSettings
from kubeproxy.api.resources import resource_for
from kubeproxy.api.source import Delete, Kind, Undecodable, Upsert


async def test_a_streaming_list_is_asked_for_as_upstream_does(api: SmallApiServer) -> None:
    await api.create("services", "ns", service("a"))
    async with reflecting(api) as inbox:
        await until(lambda: inbox.syncs)
        assert inbox.held == {"a": "10.0.0.1"}
    assert [request.query for request in api.requests] == [
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


async def test_changes_follow_in_the_same_stream(api: SmallApiServer) -> None:
    async with reflecting(api) as inbox:
        await until(lambda: inbox.syncs)
        await api.create("services", "ns", service("a"))
        await api.create("services", "ns", service("hidden", ip="None"))
        await until(lambda: inbox.held == {"a": "10.0.0.1"})
        await api.patch("services", "ns", "a", {"spec": {"clusterIP": "10.0.0.2"}})
        await until(lambda: inbox.held == {"a": "10.0.0.2"})
        await api.delete("services", "ns", "a")
        await until(lambda: inbox.held == {})
    assert len(api.requests) == 1


async def test_an_object_that_leaves_the_selection_is_deleted(api: SmallApiServer) -> None:
    await api.create("services", "ns", service("a"))
    label = "service.kubernetes.io/service-proxy-name"
    async with reflecting(api) as inbox:
        await until(lambda: inbox.held)
        await api.patch("services", "ns", "a", {"metadata": {"labels": {label: ""}}})
        await until(lambda: not inbox.held)
        await api.patch("services", "ns", "a", {"metadata": {"labels": {label: None}}})
        await until(lambda: inbox.held)


async def test_where_streaming_lists_are_refused_pages_are_fetched(api: SmallApiServer) -> None:
    api.has_streaming_lists = False
    await api.create("services", "ns", service("a"))
    async with reflecting(api) as inbox:
        await until(watching(api))
        assert inbox.held == {"a": "10.0.0.1"}
    queries = [request.query for request in api.requests]
    assert queries[1] == {
        "labelSelector": "!service.kubernetes.io/service-proxy-name",
        "fieldSelector": "spec.clusterIP!=None",
        "limit": "500",
        "resourceVersion": "0",
    }
    assert queries[2]["resourceVersion"] == str(api.store.version)
    assert queries[2]["allowWatchBookmarks"] == "true"
    assert inbox.slept == []


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
    api: SmallApiServer, fault: Fault
) -> None:
    await api.create("services", "ns", service("a"))
    api.faults.append(fault)
    async with reflecting(api, ReflectorSettings(stall_seconds=0.2)) as inbox:
        await until(lambda: inbox.held == {"a": "10.0.0.1"} and inbox.syncs == 1)
    assert any(map(lists, api.requests))
    assert inbox.slept == []


async def test_pages_are_fetched_to_the_end_before_anything_counts_as_deleted(
    api: SmallApiServer,
) -> None:
    for name in "abcde":
        await api.create("services", "ns", service(name))
    api.faults.append(Fault(status=410, applies=lists))
    async with reflecting(api, PAGES) as inbox:
        await until(lambda: inbox.syncs)
        assert sorted(inbox.held) == list("abcde")
    queries = [request.query for request in api.requests if lists(request)]
    assert [("continue" in query, query.get("resourceVersion")) for query in queries] == [
        (False, "0"),
        (False, ""),
        (True, None),
        (True, None),
    ]


async def test_a_list_whose_pages_expire_is_taken_in_one_piece(api: SmallApiServer) -> None:
    for name in "abcde":
        await api.create("services", "ns", service(name))
    api.faults.append(Fault(status=410, applies=lists))
    api.faults.append(Fault(status=410, applies=lambda seen: "continue" in seen.query))
    async with reflecting(api, PAGES) as inbox:
        await until(lambda: inbox.syncs)
        assert sorted(inbox.held) == list("abcde")
    last = [request.query for request in api.requests if lists(request)][-1]
    assert "limit" not in last
    assert last["resourceVersion"] == ""


async def test_a_watch_that_ends_is_continued_from_the_last_version(api: SmallApiServer) -> None:
    async with reflecting(api, ReflectorSettings(short_watch_seconds=0.0)) as inbox:
        await until(lambda: inbox.syncs)
        await api.create("services", "ns", service("a"))
        await until(lambda: inbox.held)
        api.end_watches()
        await until(watching(api))
        await api.create("services", "ns", service("b"))
        await until(lambda: len(inbox.held) == 2)
    assert api.requests[1].query["resourceVersion"] == "2"
    assert (inbox.syncs, inbox.slept) == (1, [])


async def test_bookmarks_save_a_list(api: SmallApiServer) -> None:
    """After a bookmark even a compacted history does not cost a list."""
    async with reflecting(api) as inbox:
        await until(lambda: inbox.syncs)
        await api.create("services", "ns", service("hidden", ip="None"))
        await api.bookmark()
        await until(lambda: api.bookmarks_sent)
        api.store.compact()
        api.end_watches()
        await until(watching(api))
        await api.create("services", "ns", service("a"))
        await until(lambda: inbox.held)
    assert inbox.syncs == 1


async def test_a_forgotten_version_means_a_new_list_that_finds_the_missed_delete(
    api: SmallApiServer,
) -> None:
    for name in "ab":
        await api.create("services", "ns", service(name))
    async with reflecting(api) as inbox:
        await until(lambda: inbox.syncs)
        api.faults.append(Fault(status=503, applies=continues))
        api.end_watches()
        await api.delete("services", "ns", "a")
        api.store.compact()
        await until(lambda: inbox.syncs == 2)
        assert list(inbox.held) == ["b"]
    listings = [request.query["resourceVersion"] for request in api.requests if streams(request)]
    assert listings == ["", "3"], "a list may be newer than what we saw, but not older"


async def test_where_not_even_a_list_has_our_version_any_will_do(api: SmallApiServer) -> None:
    """As after the storage was restored from a backup."""
    await api.create("services", "ns", service("a"))
    too_large = b'{"code":504,"message":"Too large resource version: 9, current: 2"}'
    gone = b'{"type":"ERROR","object":{"code":410}}\n'
    async with reflecting(api, PAGES) as inbox:
        await until(watching(api))
        api.faults.append(Fault(body=gone, applies=continues))
        api.faults.append(Fault(status=504, body=too_large, applies=lists))
        api.end_watches()
        await until(lambda: inbox.syncs == 2)
        api.faults.append(Fault(body=gone, applies=continues))
        api.end_watches()
        await until(lambda: inbox.syncs == 3)
    listings = [request.query["resourceVersion"] for request in api.requests if lists(request)]
    assert listings == ["0", "2", "", "2"], "and then ours counts again"


async def test_a_stream_the_server_ends_with_its_own_failure_means_a_new_list(
    api: SmallApiServer,
) -> None:
    failed = b'{"type":"ERROR","object":{"code":500,"reason":"InternalError"}}\n'
    api.faults.append(Fault(body=failed, applies=continues))
    async with reflecting(api, PAGES) as inbox:
        await until(lambda: inbox.syncs == 2)


async def test_a_busy_server_ends_a_watch_without_a_new_list(api: SmallApiServer) -> None:
    busy = b'{"type":"ERROR","object":{"code":429,"reason":"TooManyRequests"}}\n'
    api.faults.append(Fault(body=busy, applies=continues))
    async with reflecting(api, PAGES) as inbox:
        await until(watching(api, 2))
    assert (inbox.syncs, inbox.slept) == (1, [0.8])


async def test_very_short_watches_are_not_repeated_without_a_pause(api: SmallApiServer) -> None:
    api.faults += [Fault(applies=continues)] * 3
    async with reflecting(api, PAGES) as inbox:
        await until(watching(api, 4))
    assert inbox.slept == [0.8, 1.6, 3.2]


@pytest.mark.parametrize(
    "body",
    [b"<html>\n", b'{"type":"MODIFIED","object":7}\n{"type"\n', b'{"object":{}}\n'],
    ids=["no JSON", "half JSON", "no type"],
)
async def test_nonsense_in_a_watch_means_a_new_list(api: SmallApiServer, body: bytes) -> None:
    await api.create("services", "ns", service("a"))
    api.faults.append(Fault(body=body, stalls=True, applies=continues))
    async with reflecting(api, PAGES) as inbox:
        await until(lambda: inbox.syncs == 2)
        assert inbox.held == {"a": "10.0.0.1"}


async def test_unknown_events_and_bad_objects_do_not_disturb(api: SmallApiServer) -> None:
    lines = [
        {"type": "NEWS", "object": {}},
        {"type": "ADDED", "object": {"metadata": {"name": "x"}, "spec": {"ports": "none"}}},
        {"type": "ADDED", "object": service("good") | {"extra": {"deep": [1]}}},
    ]
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    api.faults.append(Fault(body=body, stalls=True, applies=continues))
    async with reflecting(api, PAGES) as inbox:
        await until(lambda: inbox.held)
    assert inbox.count(Undecodable) == 1
    assert inbox.slept == []


async def test_reordered_and_repeated_events_end_with_the_last_word(api: SmallApiServer) -> None:
    one, two = service("a"), service("a", ip="10.0.0.9")
    words = [("MODIFIED", one), ("DELETED", one), ("DELETED", one), ("ADDED", two), ("ADDED", two)]
    body = b"".join(json.dumps({"type": t, "object": o}).encode() + b"\n" for t, o in words)
    api.faults.append(Fault(body=body, stalls=True, applies=continues))
    async with reflecting(api, PAGES) as inbox:
        await until(lambda: inbox.count(Upsert) == 3)
        assert inbox.held == {"a": "10.0.0.9"}
        assert inbox.count(Delete) == 1


async def test_an_outage_deletes_nothing_and_is_followed_by_what_was_missed() -> None:
    api = SmallApiServer()
    async with api.serving():
        url = api.url
        await api.create("services", "ns", service("a"))
        await api.create("services", "ns", service("b"))
        reflector_context = reflecting(api)
        inbox = await reflector_context.__aenter__()
        await until(lambda: inbox.syncs)
    await until(lambda: len(inbox.slept) >= 4)
    assert sorted(inbox.held) == ["a", "b"]
    assert inbox.count(Delete) == 0
    api.store.delete("services", "ns", "a")
    api.store.create("services", "ns", service("c"))
    async with api.serving(port=int(url.rpartition(":")[2])):
        await until(lambda: sorted(inbox.held) == ["b", "c"])
        await reflector_context.__aexit__(None, None, None)
    assert inbox.syncs == 1


async def test_an_outage_at_the_start_is_waited_out() -> None:
    api = SmallApiServer()
    async with api.serving():
        url = api.url
    async with reflecting(api) as inbox:
        await until(lambda: len(inbox.slept) >= 2)
        assert inbox.events == []
        async with api.serving(port=int(url.rpartition(":")[2])):
            await until(lambda: inbox.syncs)


async def test_a_forbidden_list_is_tried_again_until_allowed(api: SmallApiServer) -> None:
    api.forbidden = {("list", "services"), ("watch", "services")}
    async with reflecting(api) as inbox:
        await until(lambda: len(inbox.slept) >= 2)
        api.forbidden = set()
        await until(lambda: inbox.syncs)


async def test_the_watch_time_is_random_between_five_and_ten_minutes(api: SmallApiServer) -> None:
    async with client_of(api) as client:
        inbox = Inbox()
        reflector = Reflector(client, resource_for(Kind.NODE, "n1"), inbox, rand=lambda: 0.999)
        task = asyncio.create_task(reflector.run())
        await until(lambda: inbox.syncs)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert api.requests[0].query["timeoutSeconds"] == "599"
    assert api.requests[0].query["fieldSelector"] == "metadata.name=n1"


async def test_the_source_delivers_all_four_kinds_to_one_inbox(api: SmallApiServer) -> None:
    bad: Json = {"metadata": {"name": "bad"}, "addressType": 4}
    await api.create("services", "ns", service("a"))
    await api.create("endpointslices", "ns", bad)
    await api.create("nodes", "", {"metadata": {"name": "n1"}})
    await api.create("nodes", "", {"metadata": {"name": "n2"}})
    await api.create("servicecidrs", "", {"metadata": {"name": "kubernetes"}})
    inbox = Inbox()
    async with client_of(api) as client:
        task = asyncio.create_task(ApiServerSource(client).run(inbox, "n1"))
        await until(lambda: inbox.synced() == set(Kind))
        await api.delete("services", "ns", "a")
        await until(lambda: Delete(Kind.SERVICE, "ns", "a") in inbox.events)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    names = {
        (found.kind, found.object.metadata.name)
        for found in inbox.events
        if isinstance(found, Upsert)
    }
    assert names == {
        (Kind.SERVICE, "a"),
        (Kind.NODE, "n1"),
        (Kind.SERVICE_CIDR, "kubernetes"),
    }
    bad_ones = [found for found in inbox.events if isinstance(found, Undecodable)]
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
    api: SmallApiServer, seed: int
) -> None:
    dice = random.Random(seed)
    settings = ReflectorSettings(
        streams=bool(seed % 2), page_size=3, stall_seconds=0.1, short_watch_seconds=0.0
    )
    async with reflecting(api, settings) as inbox:
        for _ in range(150):
            await stir(api, dice)
            if dice.random() < 0.5:
                await asyncio.sleep(0.002)
        api.faults.clear()
        api.end_watches()
        await until(lambda: inbox.held == served(api))
        assert inbox.count(Undecodable) == 0


async def stir(api: SmallApiServer, dice: random.Random) -> None:
    """One change or one calamity."""
    name, ip = f"s{dice.randrange(12)}", f"10.0.0.{dice.randrange(250)}"
    match dice.randrange(10):
        case 0:
            api.faults.append(dice.choice(CALAMITIES))
        case 1:
            api.end_watches()
        case 2:
            api.store.compact()
        case 3:
            await api.bookmark()
        case 4 | 5:
            if name in served(api):
                await api.delete("services", "ns", name)
        case _:
            if name in served(api):
                await api.patch("services", "ns", name, {"spec": {"clusterIP": ip}})
            else:
                await api.create("services", "ns", service(name, ip=ip))


def served(api: SmallApiServer) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in api.store.list("services", Selector()):
        metadata, spec = item["metadata"], item["spec"]
        assert isinstance(metadata, dict)
        assert isinstance(spec, dict)
        found[metadata["name"]] = spec["clusterIP"]
    return found
