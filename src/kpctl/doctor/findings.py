"""What an examination finds: one sentence each, and for what is wrong the remedy."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    """How bad it is. The order is that of the exit code: the worst one counts."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class Finding(Struct, frozen=True):
    """The outcome of one check."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.WARNING, text, remedy)


def failure(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.FAILURE, text, remedy)
