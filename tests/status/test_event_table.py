"""The table of events against the places that record them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kubeproxy
from kubeproxy.status.event_table import EVENTS

SOURCES = sorted(Path(kubeproxy.__file__).parent.rglob("*.py"))
ROWS = {(row.reason, row.type, row.action) for row in EVENTS}


def calls() -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """Every call with named arguments, by the name of what is called."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                yield name, {word.arg: word.value for word in node.keywords if word.arg}


def text(value: ast.expr | None) -> str:
    """A literal, or the name of the constant NORMAL or WARNING as an event type."""
    match value:
        case ast.Constant(value=str(found)):
            return found
        case ast.Name(id=name):
            return name.title()
    return ""


def recorded() -> Iterator[tuple[str, str, str]]:
    # The reason of a server that cannot start comes from its role.
    roles = [text(words["event_reason"]) for name, words in calls() if "event_reason" in words]
    for name, words in calls():
        if name == "record" and "reason" in words:
            reasons = [text(words["reason"])] if text(words["reason"]) else roles
            for reason in reasons:
                yield reason, text(words["type"]), text(words["action"])


def test_every_event_that_is_recorded_stands_in_the_table_and_no_other() -> None:
    assert set(recorded()) == ROWS
