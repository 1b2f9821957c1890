"""Event bodies, series aggregation by a clock that is an argument, delivery and retries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from tests.support.waiting import until

from kubeproxy.api.events import EventRequest
from kubeproxy.errors import Unavailable
from kubeproxy.facts.ids import ServiceName
from kubeproxy.status.event_series import (
    FINISH_NS,
    NORMAL,
    REFRESH_NS,
    WARNING,
    Event,
    Reference,
    SeriesBook,
    service_reference,
)
from kubeproxy.status.events import MAX_TRIES, QUEUE_LENGTH, Recorder

START_NS = 1_794_744_000 * 10**9 + 123_456_789
MINUTE_NS = 60 * 10**9
SERVICE = service_reference(ServiceName("web", "front"))


class Api:
    """An API server's event store: keeps events by name, or fails on request."""

    def __init__(self, failures: Sequence[Exception | int] = ()) -> None:
        self.requests: list[EventRequest] = []
        self.failures = list(failures)
        self.stored: dict[str, dict[str, object]] = {}

    async def post_event(self, request: EventRequest) -> int:
        self.requests.append(request)
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure
        body = msgspec.json.decode(request.body, type=dict[str, object])
        if request.method == "PATCH" and request.name not in self.stored:
            return 404
        self.stored.setdefault(request.name, {}).update(body)
        return 201 if request.method == "POST" else 200


class Clock:
    def __init__(self) -> None:
        self.now_ns = START_NS
        self.slept: list[float] = []

    def __call__(self) -> int:
        return self.now_ns

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def recorder(api: Api | None, clock: Clock) -> Recorder:
    return Recorder(api, hostname="n1", now_ns=clock, random=lambda: 0.5, sleep=clock.sleep)


def fail(target: Recorder, note: str = "port taken") -> None:
    target.record(
        SERVICE,
        type=WARNING,
        reason="FailedToStartServiceHealthcheck",
        action="Listen",
        note=note,
    )


async def test_the_starting_event_has_upstream_shape() -> None:
    """On the Node, in namespace default, no note, no series, microseconds in the time."""
    api, clock = Api(), Clock()
    target = recorder(api, clock)
    target.record(Reference("Node", "n1"), type=NORMAL, reason="Starting", action="StartKubeProxy")
    await target.drain()
    (request,) = api.requests
    assert (request.method, request.namespace) == ("POST", "default")
    assert request.name == f"n1.{START_NS:x}"
    assert msgspec.json.decode(request.body) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": request.name, "namespace": "default"},
        "eventTime": "2026-11-15T12:00:00.123456Z",
        "reportingController": "kube-proxy",
        "reportingInstance": "kube-proxy-n1",
        "action": "StartKubeProxy",
        "reason": "Starting",
        "regarding": {"kind": "Node", "name": "n1", "apiVersion": "v1"},
        "type": "Normal",
    }


async def test_repetition_becomes_a_series() -> None:
    """The second occurrence patches the first event; the third is only counted."""
    api, clock = Api(), Clock()
    target = recorder(api, clock)
    for _ in range(3):
        fail(target)
        clock.now_ns += MINUTE_NS
        await target.drain()
    first, second = api.requests
    assert first.method == "POST"
    assert (second.method, second.name, second.namespace) == ("PATCH", first.name, "web")
    assert msgspec.json.decode(second.body) == {
        "series": {"count": 2, "lastObservedTime": "2026-11-15T12:02:00.123456Z"}
    }


async def test_a_quiet_series_is_closed_with_its_final_count() -> None:
    api, clock = Api(), Clock()
    target = recorder(api, clock)
    for _ in range(5):
        fail(target)
    await target.drain()
    clock.now_ns += FINISH_NS + 1
    await target.drain()
    assert msgspec.json.decode(api.requests[-1].body)["series"]["count"] == 5
    assert len(api.requests) == 3
    fail(target)
    await target.drain()
    assert api.requests[-1].method == "POST"  # a new series


async def test_a_long_series_is_written_every_half_hour() -> None:
    api, clock = Api(), Clock()
    target = recorder(api, clock)
    for _ in range(REFRESH_NS // MINUTE_NS + 1):
        fail(target)
        await target.drain()
        clock.now_ns += MINUTE_NS
    counts = [msgspec.json.decode(r.body)["series"]["count"] for r in api.requests[1:]]
    assert counts == [2, 31]


def event(at_ns: int, note: str = "") -> Event:
    return Event(SERVICE, WARNING, "R", "A", note, at_ns)


def test_a_single_event_is_forgotten_after_six_minutes() -> None:
    book = SeriesBook()
    assert book.observe(event(0), 0) is not None
    assert book.finish(FINISH_NS) == []
    again = book.observe(event(FINISH_NS), FINISH_NS)
    assert again is not None
    assert again.series is not None
    book = SeriesBook()
    book.observe(event(0), 0)
    assert book.finish(FINISH_NS + 1) == []
    fresh = book.observe(event(FINISH_NS + 1), FINISH_NS + 1)
    assert fresh is not None
    assert fresh.series is None


def test_the_note_does_not_split_a_series_but_the_object_does() -> None:
    book = SeriesBook()
    book.observe(event(0, "one"), 0)
    same = book.observe(event(1, "two"), 1)
    assert same is not None
    assert same.series is not None
    other = Event(Reference("Node", "n"), WARNING, "R", "A", "", 2)
    separate = book.observe(other, 2)
    assert separate is not None
    assert separate.series is None


@pytest.mark.parametrize(
    "failure", [Unavailable("no route"), ConnectionRefusedError("no"), TimeoutError()]
)
async def test_no_answer_is_retried_with_jitter(failure: Exception) -> None:
    api, clock = Api([failure, failure]), Clock()
    target = recorder(api, clock)
    fail(target)
    await target.drain()
    assert len(api.stored) == 1
    assert clock.slept == [11.25, 11.25]


async def test_retries_end_after_twelve_tries() -> None:
    api, clock = Api([OSError("down")] * 50), Clock()
    target = recorder(api, clock)
    fail(target)
    await target.drain()
    assert len(api.requests) == MAX_TRIES
    assert len(clock.slept) == MAX_TRIES - 1


async def test_a_rejection_is_not_retried() -> None:
    api, clock = Api([403]), Clock()
    target = recorder(api, clock)
    fail(target)
    await target.drain()
    assert (len(api.requests), clock.slept) == (1, [])


async def test_a_series_whose_event_is_gone_is_created_anew() -> None:
    """The whole event is sent, with the series in it; a race with its creation is retried."""
    api, clock = Api(), Clock()
    target = recorder(api, clock)
    fail(target)
    await target.drain()
    api.stored.clear()
    api.failures = [404, 409]
    fail(target)
    await target.drain()
    assert [r.method for r in api.requests] == ["POST", "PATCH", "POST", "PATCH", "POST"]
    (stored,) = api.stored.values()
    assert stored["reason"] == "FailedToStartServiceHealthcheck"
    assert stored["series"] == {"count": 2, "lastObservedTime": "2026-11-15T12:00:00.123456Z"}


async def test_a_full_queue_drops_new_events() -> None:
    api, clock = Api(), Clock()
    target = recorder(api, clock)
    for number in range(QUEUE_LENGTH + 5):
        target.record(Reference("Node", f"n{number}"), type=NORMAL, reason="R", action="A")
    await target.drain()
    assert len(api.stored) == QUEUE_LENGTH


async def test_without_an_api_server_events_go_nowhere() -> None:
    clock = Clock()
    target = recorder(None, clock)
    fail(target)
    await target.drain()
    assert clock.slept == []


async def test_the_running_recorder_wakes_up_for_an_event() -> None:
    api, clock = Api(), Clock()
    target = recorder(api, clock)
    task = asyncio.create_task(target.run())
    await asyncio.sleep(0)
    fail(target)
    await until(lambda: api.stored)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
