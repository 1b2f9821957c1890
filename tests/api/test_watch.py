"""The list and watch protocol, without a server: bytes in, events out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.watch_bytes import SYNCED, bookmark, delete, fed, line, listed, page, raw, upsert

from kubeproxy.api.objects import Service
from kubeproxy.api.source import Delete, Kind, Undecodable, Upsert
from kubeproxy.api.watch import (
    Failed,
    Garbled,
    Ignored,
    LineSplitter,
    Progress,
    Tracker,
    WatchEvent,
    decode_status,
)


def test_a_page_is_decoded_into_trimmed_objects_and_ends_the_list() -> None:
    one = Tracker(Kind.SERVICE)
    one.begin_list()
    got = fed(one, page(raw("a", port=3), raw("b")))
    assert got.events == (upsert("a", 3), upsert("b"), SYNCED)
    assert one.resource_version == "10"
    assert not one.is_listing


def test_only_the_last_page_ends_the_list() -> None:
    one = Tracker(Kind.SERVICE)
    one.begin_list()
    first = fed(one, page(raw("a"), token="next"))
    assert (first.events, first.continue_token) == ((upsert("a"),), "next")
    assert one.is_listing
    last = fed(one, page(raw("b")))
    assert last.events[-1] == SYNCED
    assert one.resource_version == "10"
    assert last.continue_token == ""


def test_a_list_without_items_is_empty() -> None:
    one = Tracker(Kind.SERVICE)
    one.begin_list()
    body = b'{"kind":"ServiceList","metadata":{"resourceVersion":"7"},"items":null}'
    assert fed(one, body).events == (SYNCED,)
    assert one.resource_version == "7"


def test_a_relist_finds_missed_deletes_once_it_is_complete() -> None:
    one = listed("a", "b", "c")
    one.begin_list()
    assert fed(one, page(raw("c"), token="t")).events == (upsert("c"),)
    rest = fed(one, page(raw("d"), version="20"))
    assert rest.events == (upsert("d"), delete("a"), delete("b"), SYNCED)
    assert one.resource_version == "20"


def test_a_broken_off_list_deletes_nothing_and_its_additions_are_remembered() -> None:
    one = listed("a")
    one.begin_list()
    fed(one, page(raw("b"), token="t"))
    one.begin_list()
    events = fed(one, page(raw("a"), version="30")).events
    assert events == (upsert("a"), delete("b"), SYNCED)
    assert one.resource_version == "30"


def test_watch_events_follow_the_list_and_move_the_version() -> None:
    one = listed("a")
    one.begin_stream()
    added = one.feed(line("ADDED", raw("b", version=11)))
    changed = one.feed(line("MODIFIED", raw("a", version=12, port=9)))
    assert added == [upsert("b", version=11)]
    assert changed == [upsert("a", 9, version=12)]
    assert one.resource_version == "12"
    assert one.feed(line("DELETED", raw("b", version=13))) == [delete("b")]
    assert one.resource_version == "13"


def test_a_delete_of_something_never_announced_is_none() -> None:
    one = listed("a")
    assert one.feed(line("DELETED", raw("x", version=14))) == []
    assert one.resource_version == "14"


def test_a_deleted_object_need_not_be_decodable() -> None:
    one = listed("a")
    assert one.feed(line("DELETED", raw("a", port="??"))) == [delete("a")]


def test_a_streaming_list_ends_with_its_bookmark() -> None:
    one = listed("a", "b")
    one.begin_list()
    stream = line("ADDED", raw("b")) + bookmark("39") + bookmark("40", ends=True)
    assert one.feed(stream) == [upsert("b"), delete("a"), SYNCED]
    assert one.resource_version == "40"


def test_a_delete_inside_a_streaming_list_is_not_announced_twice() -> None:
    one = listed("a")
    one.begin_list()
    stream = line("ADDED", raw("a")) + line("DELETED", raw("a")) + bookmark("41", ends=True)
    assert one.feed(stream) == [upsert("a"), delete("a"), SYNCED]
    assert one.resource_version == "41"


def test_versions_of_objects_do_not_count_before_the_list_is_complete() -> None:
    """Initial events come in any order: continuing from one of them could skip others."""
    one = Tracker(Kind.SERVICE)
    one.begin_list()
    one.feed(line("ADDED", raw("a", version=99)))
    assert one.resource_version == ""


def test_an_event_without_a_version_keeps_the_last_one() -> None:
    one = listed("a")
    one.feed(line("MODIFIED", {"metadata": {"name": "a", "namespace": "ns"}}))
    assert one.resource_version == "10"


def test_bookmarks_move_the_version() -> None:
    one = listed("a")
    assert one.feed(bookmark("55")) == [Progress("55")]
    assert one.resource_version == "55"


def test_an_error_event_ends_the_stream_and_says_whether_the_version_is_gone() -> None:
    one = listed("a")
    gone = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}
    events = one.feed(line("ERROR", gone) + line("ADDED", raw("b")))
    assert len(events) == 1
    assert isinstance(events[0], Failed)
    assert events[0].status.is_expired


def test_other_errors_are_not_taken_for_expiry() -> None:
    events = listed().feed(line("ERROR", {"code": 500, "reason": "InternalError"}))
    assert isinstance(events[0], Failed)
    assert not events[0].status.is_expired


def test_unknown_event_types_are_reported_and_passed_over() -> None:
    one = listed()
    events = one.feed(line("SURPRISE", raw("a")) + line("ADDED", raw("b")))
    assert events == [Ignored("SURPRISE"), upsert("b")]


@pytest.mark.parametrize("bad", [b"nonsense\n", b'{"type":"ADDED"\n', b"[]\n", b'{"type":1}\n'])
def test_a_line_that_is_no_event_garbles_the_stream(bad: bytes) -> None:
    events = listed().feed(bad + line("ADDED", raw("b")))
    assert [type(event) for event in events] == [Garbled]


def test_a_page_that_is_no_list_garbles_it_and_the_list_stays_open() -> None:
    one = listed("a")
    one.begin_list()
    assert isinstance(fed(one, b"<html>").events[0], Garbled)
    assert one.is_listing


def test_one_undecodable_object_does_not_disturb_the_others_nor_count_as_deleted() -> None:
    one = listed("a", "b")
    one.begin_list()
    events = fed(one, page(raw("a", port="huge"), raw("b"))).events
    assert isinstance(events[0], Undecodable)
    assert events[0].name == "ns/a"
    assert events[1:] == (upsert("b"), SYNCED)
    assert one.resource_version == "10"


def test_an_object_without_even_a_name_is_reported() -> None:
    one = Tracker(Kind.SERVICE)
    one.begin_list()
    events = fed(one, page({}).replace(b"{}", b"[]")).events
    assert isinstance(events[0], Undecodable)
    assert events[0].name == ""


def test_half_a_line_is_never_an_event_and_is_forgotten_by_the_next_stream() -> None:
    one = listed()
    whole = line("ADDED", raw("a"))
    assert one.feed(whole[:20]) == []
    one.begin_stream()
    assert one.feed(whole) == [upsert("a")]


def test_status_of_a_body_that_is_none_is_empty() -> None:
    assert decode_status(b"upstream connect error").code == 0
    assert decode_status(b'{"code":403,"message":"no"}').message == "no"


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


@given(st.lists(st.integers(min_value=0, max_value=400)))
def test_where_the_bytes_are_cut_does_not_matter(places: list[int]) -> None:
    data = b"".join(line("ADDED", raw(name)) for name in "abc") + bookmark("9")
    whole = listed().feed(data)
    one = listed()
    pieces: list[WatchEvent] = []
    for piece in cut(data, places):
        pieces += one.feed(piece)
    assert pieces == whole


@given(st.lists(st.binary(max_size=12)))
def test_lines_come_out_whole(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    got = [found for piece in pieces for found in splitter.feed(piece)]
    complete = b"".join(pieces).split(b"\n")[:-1]
    assert got == [found for found in complete if found.strip()]


NAMES = st.sampled_from("abcde")
STEP = st.one_of(
    st.tuples(st.just("put"), NAMES, st.integers(0, 3), st.booleans()),
    st.tuples(st.just("drop"), NAMES, st.just(0), st.booleans()),
)


@given(st.lists(STEP, max_size=30))
def test_whatever_was_missed_a_relist_ends_like_the_server(
    steps: list[tuple[str, str, int, bool]],
) -> None:
    """Some events are seen, some lost; after a list the receiver holds what the server holds."""
    one, server, held = listed(), dict[str, int](), dict[str, int]()
    for verb, name, port, is_seen in steps:
        gone = server.pop(name, None) is not None
        if verb == "put":
            server[name] = port
        if is_seen and (verb == "put" or gone):
            apply(
                held,
                one.feed(line("MODIFIED" if verb == "put" else "DELETED", raw(name, port=port))),
            )
    one.begin_list()
    apply(held, fed(one, page(*(raw(name, port=port) for name, port in server.items()))).events)
    assert held == server


def apply(held: dict[str, int], events: Iterable[WatchEvent]) -> None:
    for event in events:
        if isinstance(event, Upsert):
            assert isinstance(event.object, Service)
            held[event.object.metadata.name] = event.object.spec.health_check_node_port or 0
        elif isinstance(event, Delete):
            del held[event.name]
