"""Tables in the form that suits where they go."""

from __future__ import annotations

import io

import pytest

from kpctl.look.output import colored, print_table, record_lines

HEADINGS = ("service port", "arrives at", "endpoints")
ROW = ("shop/web:http TCP", "ClusterIP [fd00:96::10]:80\nNodePort [2001:db8::1]:30080", "none")


class Terminal(io.StringIO):
    """A stream that a person reads."""

    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    print_table(HEADINGS, [ROW, ROW], stream)
    return stream.getvalue()


def test_a_table_is_framed_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(monkeypatch, 90)
    assert "arrives at" in text.splitlines()[1] and "endpoints" in text.splitlines()[1]


@pytest.mark.parametrize("columns", [40, 60])
def test_a_narrow_terminal_gets_paragraphs_and_whole_addresses(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    lines = printed(monkeypatch, columns).splitlines()
    assert lines[:4] == [
        "shop/web:http TCP",
        "  arrives at  ClusterIP [fd00:96::10]:80",
        "              NodePort [2001:db8::1]:30080" if columns == 60 else "              NodePort",
        "  endpoints   none" if columns == 60 else "              [2001:db8::1]:30080",
    ]
    assert "" in lines, "between two rows"


def test_cells_without_content_are_left_out() -> None:
    assert list(record_lines(HEADINGS, [("web", "", "none")], 60)) == ["web", "  endpoints   none"]


def test_a_pipe_gets_one_line_per_row() -> None:
    stream = io.StringIO()
    print_table(HEADINGS, [ROW], stream)
    assert stream.getvalue().splitlines()[1] == (
        "shop/web:http TCP  ClusterIP [fd00:96::10]:80, NodePort [2001:db8::1]:30080  none"
    )


def test_a_person_may_want_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colored("warning", "yellow") == "\x1b[33mwarning\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert colored("warning", "yellow") == "warning"
