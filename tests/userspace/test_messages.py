"""Frames between the proxy and its carrier."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.messages import (
    Answer,
    Balance,
    Close,
    Command,
    Done,
    Frames,
    Open,
    Say,
    Sync,
    Update,
    format_frame,
)

numbers = st.integers(0, 2**31)
targets = st.lists(st.builds(Target, st.text(), st.integers(0, 65535)), max_size=5).map(tuple)
balances = st.builds(Balance, targets, targets, st.integers(0, 86400))
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(Open, numbers, st.text(), st.booleans(), balances),
    st.builds(Update, numbers, balances),
    st.builds(Close, numbers),
    st.builds(Sync, numbers),
)
answers: st.SearchStrategy[Answer] = st.one_of(
    st.builds(Done, numbers, numbers, numbers), st.builds(Say, st.text(), st.text())
)


def pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[start : start + size] for start in range(0, len(stream), size)]


@given(st.lists(commands, max_size=5), st.integers(1, 50))
def test_commands_arrive_whole_whatever_the_pieces(sent: list[Command], size: int) -> None:
    frames = Frames()
    received: list[Command] = []
    for piece in pieces(b"".join(map(format_frame, sent)), size):
        frames.feed(piece)
        received += frames.commands()
    assert received == sent


@given(st.lists(answers, max_size=5), st.integers(1, 50))
def test_answers_arrive_whole_whatever_the_pieces(sent: list[Answer], size: int) -> None:
    frames = Frames()
    received: list[Answer] = []
    for piece in pieces(b"".join(map(format_frame, sent)), size):
        frames.feed(piece)
        received += frames.answers()
    assert received == sent
