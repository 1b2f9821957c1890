"""Objects that nest deeper than any decoder likes: each ends at itself, the others go on.

An API server stores `metadata.managedFields[].fieldsV1` however deep it nests, from any user who
may edit a Service.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.costs import megabytes, seconds_for
from tests.support.reflecting import PAGES, client_of, continues, lists, reflecting
from tests.support.waiting import until
from tests.support.watch_bytes import SYNCED, fed, line, listed, page, raw, upsert

from kpctl.apiserver.small import Fault, SmallApiServer
from kpctl.apiserver.store import Json
from kubeproxy.api.auth.access import ExecSpec
from kubeproxy.api.auth.exec_plugin import decode_credential
from kubeproxy.api.json_text import CUT, NotJson, cut_deep, parse_json, repair_json
from kubeproxy.api.node import NodeFinder
from kubeproxy.api.objects import Service
from kubeproxy.api.source import Delete, Kind, Undecodable
from kubeproxy.api.watch import Failed, Shortened, Tracker, WatchEvent, decode_status
from kubeproxy.errors import Unavailable
from kubeproxy.logs import LogOptions, setup_logging, stop_logging

V1 = "client.authentication.k8s.io/v1"
HOLE = b'"HOLE"'
"""Where the nested part is put: `json` itself cannot write it."""
ADDRESS: Json = {"type": "InternalIP", "address": "10.0.0.1"}

SHAPES: dict[str, Callable[[int], bytes]] = {
    "objects": lambda n: b'{"f:a":' * n + b"{}" + b"}" * n,
    "arrays": lambda n: b"[" * n + b"]" * n,
    "mixed": lambda n: b'[{"]":' * (n // 2) + b"1" + b"}]" * (n // 2),
}
LEVELS = (1_000, 10_000, 200_000)

deep = pytest.mark.parametrize(
    "nest", [SHAPES[shape](n) for shape in SHAPES for n in LEVELS], ids=lambda _: ""
)


def deep_raw(name: str, *, version: int = 1, port: object = 0) -> dict[str, object]:
    """A Service with a hole in its managed fields."""
    made = raw(name, version=version, port=port)
    metadata = made["metadata"]
    assert isinstance(metadata, dict)
    return {**made, "metadata": {"managedFields": [{"fieldsV1": "HOLE"}], **metadata}}


def fill(data: bytes, nest: bytes) -> bytes:
    assert HOLE in data
    return data.replace(HOLE, nest)


def one_note(events: list[WatchEvent] | tuple[WatchEvent, ...]) -> Shortened:
    (note,) = (event for event in events if isinstance(event, Shortened))
    return note


@deep
def test_a_deep_watch_line_is_an_event_like_any_other(nest: bytes) -> None:
    one = listed("b")
    data = fill(line("MODIFIED", deep_raw("a", version=11, port=7)), nest)
    events = one.feed(data + line("MODIFIED", raw("b", version=12)))
    assert upsert("a", 7, version=11) in events
    assert upsert("b", version=12) in events
    assert one_note(events).name == "ns/a"
    assert one.resource_version == "12"


@deep
def test_a_deep_object_in_a_page_leaves_the_others_alone(nest: bytes) -> None:
    one = Tracker(Kind.SERVICE)
    one.begin_list()
    got = fed(one, fill(page(raw("a"), deep_raw("b", port=3), raw("c")), nest))
    assert [event for event in got.events if not isinstance(event, Shortened)] == [
        upsert("a"),
        upsert("b", 3),
        upsert("c"),
        SYNCED,
    ]
    assert one_note(got.events).name == "ns/b"


@deep
def test_a_deep_object_is_deleted_like_any_other(nest: bytes) -> None:
    assert listed("a").feed(fill(line("DELETED", deep_raw("a")), nest)) == [
        Delete(Kind.SERVICE, "ns", "a")
    ]


@deep
def test_a_deep_status_keeps_its_code(nest: bytes) -> None:
    status = {"details": {"causes": "HOLE"}, "code": 410, "message": "gone"}
    assert decode_status(fill(json.dumps(status).encode(), nest)).code == 410
    (event,) = listed().feed(fill(line("ERROR", status), nest))
    assert isinstance(event, Failed) and event.status.is_expired


@deep
async def test_a_deep_node_is_found(api: SmallApiServer, nest: bytes) -> None:
    node = {"metadata": {"managedFields": "HOLE", "name": "n1"}, "status": {"addresses": [ADDRESS]}}
    nodes = json.dumps({"kind": "NodeList", "items": [node]}).encode()
    api.faults.append(Fault(body=fill(nodes, nest)))
    assert await find(api) == "n1"


async def find(api: SmallApiServer) -> str:
    async with client_of(api) as client:
        found = await NodeFinder(client).find("n1", needs_pod_cidrs=False)
    assert found is not None
    return found.metadata.name


@pytest.mark.parametrize("body", [b'{"items":[{"metadata":{"name":"\xff"}}]}', b"[" * 9_000])
async def test_a_node_that_is_no_text_is_asked_for_again(api: SmallApiServer, body: bytes) -> None:
    """The server's nonsense is not the end of the proxy."""
    await api.create("nodes", "", {"metadata": {"name": "n1"}, "status": {"addresses": [ADDRESS]}})
    api.faults.append(Fault(body=body))
    assert await find(api) == "n1"


@deep
def test_a_deep_credential_is_used(nest: bytes) -> None:
    spec = ExecSpec(command="plugin", api_version=V1)
    printed = {"kind": "ExecCredential", "apiVersion": V1, "x": "HOLE", "status": {"token": "t"}}
    assert decode_credential(fill(json.dumps(printed).encode(), nest), spec).token == "t"
    with pytest.raises(Unavailable, match="exec: plugin plugin: "):
        decode_credential(nest, spec)


def test_a_needed_field_that_nests_is_refused_by_name() -> None:
    """The object is named, its version counts, and nothing is listed again because of it."""
    one = listed("a")
    data = fill(line("MODIFIED", raw("a", version=11, port="HOLE")), SHAPES["arrays"](5_000))
    (event,) = one.feed(data)
    assert isinstance(event, Undecodable)
    assert event.name == "ns/a"
    assert one.resource_version == "11"


@pytest.mark.parametrize(
    "text",
    [
        rb'"\ud800"',
        rb'"\udc00 \uD83D\uDE00 \\ud800"',
        b'"\xff\xfe"',
        b"1" + b"0" * 100_000,
        b"1e999999999999",
        b"-0.0e-99999",
        rb'"\u0000"',
        b"[" * 1_500 + b"1e400" + b"]" * 1_500,
    ],
)
def test_nothing_a_skipped_field_holds_ends_the_list(text: bytes) -> None:
    one = Tracker(Kind.SERVICE)
    one.begin_list()
    got = fed(one, fill(page(raw("a"), deep_raw("b"), raw("c")), text))
    assert [event for event in got.events if not isinstance(event, Shortened)] == [
        *(upsert(name) for name in "abc"),
        SYNCED,
    ]


@pytest.mark.parametrize(
    "text", [rb'"\ud800"', b'"\xff"', b"9" * 100_000, b"1e999999", b"{}", b"[[[[", b"-", b'"']
)
def test_nothing_a_needed_field_holds_ends_the_stream_for_ever(text: bytes) -> None:
    """What is JSON is named and passed over; only what is none means a new list."""
    one = listed("a")
    events = one.feed(fill(line("MODIFIED", raw("a", version=11, port="HOLE")), text))
    assert len(events) == 1
    if isinstance(events[0], Undecodable):
        assert events[0].name == "ns/a"


def test_an_object_is_named_once_per_version() -> None:
    one = listed("b")
    nest = SHAPES["objects"](1_000)

    def notes(data: bytes) -> list[WatchEvent]:
        return [event for event in one.feed(fill(data, nest)) if isinstance(event, Shortened)]

    def relist() -> list[WatchEvent]:
        one.begin_list()
        found = fed(one, fill(page(deep_raw("a", version=11)), nest)).events
        one.begin_stream()
        return [event for event in found if isinstance(event, Shortened)]

    assert notes(line("ADDED", deep_raw("a", version=11))) == [Shortened("ns/a", "11")]
    assert relist() == []
    assert notes(line("MODIFIED", deep_raw("a", version=13))) == [Shortened("ns/a", "13")]
    one.feed(line("DELETED", raw("a", version=14)))
    assert notes(line("ADDED", deep_raw("a", version=11))) == [Shortened("ns/a", "11")]


async def test_the_reflector_lists_and_watches_on(
    api: SmallApiServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """One list, one watch, no pause; the object is named in the log and in use."""
    nest = SHAPES["mixed"](20_000)
    spec = {"clusterIP": "10.0.0.1"}
    items = [deep_raw("a"), raw("b")]
    first = page(*({**item, "spec": spec} for item in items))
    later = line("ADDED", {**deep_raw("c", version=11), "spec": spec})
    api.faults.append(Fault(body=fill(first, nest), applies=lists))
    api.faults.append(Fault(body=fill(later, nest), stalls=True, applies=continues))
    setup_logging(LogOptions())
    try:
        async with reflecting(api, PAGES) as inbox:
            await until(lambda: len(inbox.held) == 3)
            assert (inbox.syncs, inbox.slept) == (1, [])
    finally:
        stop_logging()
    log = capfd.readouterr().err
    assert log.count("nested too deeply") == 2
    assert 'name="ns/a"' in log and 'name="ns/c"' in log


# --- the scanner ---

ANY_JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\[]{}ü\n😀', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('a"[{\\', max_size=2), inner)
    ),
)


def agrees(cut: object, whole: object, room: int) -> bool:
    """Are the values equal, up to containers that lie deeper than there is room?"""
    if isinstance(whole, list | dict) and room <= 0 and cut == json.loads(CUT):
        return True
    if isinstance(whole, list):
        assert isinstance(cut, list) and room >= 0
        return len(cut) == len(whole) and all(
            agrees(a, b, room - 1) for a, b in zip(cut, whole, strict=True)
        )
    if isinstance(whole, dict):
        assert isinstance(cut, dict) and room >= 0
        return cut.keys() == whole.keys() and all(
            agrees(cut[key], whole[key], room - 1) for key in whole
        )
    return cut == whole


@given(ANY_JSON, st.integers(min_value=0, max_value=4), st.booleans())
def test_cutting_changes_nothing_but_what_is_deep(value: object, room: int, plain: bool) -> None:
    text = json.dumps(value, ensure_ascii=plain).encode()
    assert agrees(json.loads(cut_deep(text, room)), value, room)


@given(ANY_JSON, st.booleans())
def test_a_sound_text_stays_as_it_is(value: object, plain: bool) -> None:
    text = json.dumps(value, ensure_ascii=plain).encode()
    assert repair_json(text) == text


@given(st.binary() | st.text(alphabet='"\\[]{}u:,d8').map(str.encode))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        parse_json(msgspec.json.Decoder(Service), data)
    except NotJson as error:
        assert str(error)


@pytest.mark.parametrize(
    "piece",
    [b'{"":', b"[", b"[{},", b"{},", b'"a",', rb"\"", b'"', rb"\ud800", b"[1,1", b"]", b"[]]"],
)
def test_the_time_grows_with_the_size_and_not_faster(piece: bytes) -> None:
    small = piece * (200_000 // len(piece))
    of_small, of_large = (seconds_for(partial(repair_json, t)) for t in (small, small * 4))
    assert of_large < 12 * of_small + megabytes(10)


def test_cutting_does_not_depend_on_the_stack() -> None:
    """A decoder deep in a call stack has less room; the text is then cut and read all the same."""

    def at(depth: int, text: bytes) -> str:
        if depth:
            return at(depth - 1, text)
        return parse_json(msgspec.json.Decoder(Service), text).value.metadata.name

    text = fill(json.dumps(deep_raw("a")).encode(), SHAPES["arrays"](300))
    assert at(sys.getrecursionlimit() - 250, text) == "a"
