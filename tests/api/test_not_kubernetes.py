"""Answers with status 200 that are not what was asked for: nothing is deleted because of them.

A load balancer with a page of its own, a login page, another API: they all exist in front of API
servers, mostly while those are away.
"""

from __future__ import annotations

import json

import pytest
from tests.support.reflecting import PAGES, continues, lists, reflecting, service, streams
from tests.support.waiting import until
from tests.support.watch_bytes import fed

from kpctl.apiserver.small import Fault, SmallApiServer
from kubeproxy.api.reflector import ReflectorSettings
from kubeproxy.api.source import Delete, Kind, Synced
from kubeproxy.api.watch import Garbled, Tracker

STATUS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200}
ONE_SERVICE = {"kind": "Service", "metadata": {"name": "x", "resourceVersion": "5"}, "spec": {}}
PODS = {"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": []}
UNVERSIONED = {"kind": "ServiceList", "metadata": {}, "items": []}
ANSWERS: dict[str, bytes] = {
    "nothing": b"",
    "a page": b"<!DOCTYPE html><html><body>It works!</body></html>",
    "a login page": b"<html><form action=/login></form></html>" * 100,
    "text": b"no healthy upstream",
    "an empty object": b"{}",
    "an empty list": b"[]",
    "null": b"null",
    "true": b"true",
    "a number": b"0",
    "another program's JSON": b'{"ok": true, "metadata": {}, "items": []}',
    "a Status": json.dumps(STATUS).encode(),
    "one object": json.dumps(ONE_SERVICE).encode(),
    "a list of pods": json.dumps(PODS).encode(),
    "a list without a version": json.dumps(UNVERSIONED).encode(),
    "protobuf": b"k8s\x00\n\x0f\n\x02v1\x12\tPodList\x12\x00",
    "lines": b"{}\n{}\n{}\n",
    "bytes": bytes(range(256)) * 20,
    "UTF-16": json.dumps(PODS).encode("utf-16"),
}
STREAMS = ReflectorSettings(short_watch_seconds=0.0, stall_seconds=0.2)


@pytest.mark.parametrize("settings", [PAGES, STREAMS], ids=["pages", "streams"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_no_such_answer_deletes_anything(
    api: SmallApiServer, name: str, settings: ReflectorSettings
) -> None:
    """To the list, to the streaming list and to the watch, again and again, with objects held."""
    await api.create("services", "ns", service("a"))
    await api.create("services", "ns", service("b"))
    async with reflecting(api, settings) as inbox:
        await until(lambda: len(inbox.held) == 2 and inbox.syncs)
        for applies in (continues, streams, lists, continues, lists, streams):
            api.faults.append(Fault(body=ANSWERS[name], applies=applies))
        api.store.compact()  # so that the next watch is refused, and lists follow
        await api.create("services", "ns", service("c"))
        api.end_watches()
        await until(lambda: sorted(inbox.held) == ["a", "b", "c"])
        assert inbox.count(Delete) == 0


@pytest.mark.parametrize("name", ANSWERS)
def test_none_of_them_is_a_list(name: str) -> None:
    for kind in Kind:
        tracker = Tracker(kind)
        tracker.begin_list()
        page = fed(tracker, ANSWERS[name])
        assert not any(isinstance(event, Synced) for event in page.events)
        if b"PodList" not in ANSWERS[name] or name == "a list of pods":
            assert any(isinstance(event, Garbled) for event in page.events)


@pytest.mark.parametrize("status", [201, 204, 206, 301, 302, 307, 401, 404, 418, 451, 500, 502])
async def test_no_status_code_deletes_anything(api: SmallApiServer, status: int) -> None:
    """With the body of an empty list: the code counts."""
    empty = {"kind": "ServiceList", "metadata": {"resourceVersion": "99"}, "items": []}
    await api.create("services", "ns", service("a"))
    async with reflecting(api, PAGES) as inbox:
        await until(lambda: inbox.syncs)
        headers = (("Location", f"{api.url}/login"),) if 300 <= status < 400 else ()
        body = b"" if status == 204 else json.dumps(empty).encode()
        for _ in range(2):
            api.faults.append(Fault(status=status, headers=headers, body=body, applies=lists))
        api.store.compact()
        await api.create("services", "ns", service("b"))
        api.end_watches()
        await until(lambda: sorted(inbox.held) == ["a", "b"])
        assert inbox.count(Delete) == 0


async def test_a_node_is_not_found_in_another_answer(api: SmallApiServer) -> None:
    """Otherwise the proxy would start without knowing its addresses."""
    from tests.support.reflecting import client_of

    from kubeproxy.api.node import NodeFinder

    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    address = {"type": "InternalIP", "address": "192.0.2.1"}
    await api.create("nodes", "", {"metadata": {"name": "n"}, "status": {"addresses": [address]}})
    for body in ANSWERS.values():
        api.faults.append(Fault(body=body))
    async with client_of(api) as client:
        found = await NodeFinder(client, sleep=sleep).find("n", needs_pod_cidrs=False)
    assert found is not None and found.metadata.name == "n"
    assert len(slept) == len(ANSWERS)
