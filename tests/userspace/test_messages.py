"""Frames between the proxy and its carrier."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.messages import (
    Balance,
    CloseListener,
    Command,
    FrameDecoder,
    Inspect,
    InspectReply,
    LogMessage,
    OpenListener,
    Reply,
    Route,
    Sync,
    SyncReply,
    UpdateListener,
    format_frame,
)

numbers = st.integers(0, 2**31)
targets = st.lists(st.builds(Target, st.text(), st.integers(0, 65535)), max_size=5).map(tuple)
balances = st.builds(Balance, targets, targets, st.integers(0, 86400))
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(OpenListener, numbers, st.text(), st.booleans(), balances),
    st.builds(UpdateListener, numbers, balances),
    st.builds(CloseListener, numbers),
    st.builds(Sync, numbers),
    st.builds(Inspect, numbers, numbers),
)
routes = st.builds(Route, st.text(), st.booleans(), st.builds(Target, st.text(), numbers))
replies: st.SearchStrategy[Reply] = st.one_of(
    st.builds(SyncReply, numbers, numbers, numbers),
    st.builds(LogMessage, st.text(), st.text()),
    st.builds(
        InspectReply,
        numbers,
        st.lists(st.tuples(routes, numbers, numbers), max_size=3).map(tuple),
        st.lists(st.tuples(routes, st.text()), max_size=3).map(tuple),
        st.booleans(),
    ),
)


def pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[start : start + size] for start in range(0, len(stream), size)]


@given(st.lists(commands, max_size=5), st.integers(1, 50))
def test_commands_arrive_whole_whatever_the_pieces(sent: list[Command], size: int) -> None:
    decoder = FrameDecoder()
    received: list[Command] = []
    for piece in pieces(b"".join(map(format_frame, sent)), size):
        decoder.feed(piece)
        received += decoder.commands()
    assert received == sent


@given(st.lists(replies, max_size=5), st.integers(1, 50))
def test_replies_arrive_whole_whatever_the_pieces(sent: list[Reply], size: int) -> None:
    decoder = FrameDecoder()
    received: list[Reply] = []
    for piece in pieces(b"".join(map(format_frame, sent)), size):
        decoder.feed(piece)
        received += decoder.replies()
    assert received == sent
