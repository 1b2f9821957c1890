"""Errors about fields, worded as Kubernetes words them: path, class, value, detail.

Operators search for these texts. Which values are wrong is decided in `validate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kubeproxy.config.types import FlushFrequency
from kubeproxy.go.duration import Duration, format_duration
from kubeproxy.go.quoting import quote

Shown = str | int | float | Duration | FlushFrequency | Sequence[str] | Mapping[str, bool]


class FieldError(msgspec.Struct, frozen=True, gc=False):
    """One thing wrong with one field."""

    path: str
    body: str

    def __str__(self) -> str:
        return f"{self.path}: {self.body}"


def join_errors(errors: Sequence[object]) -> str:
    """Join as Kubernetes does: one error bare, several in brackets, identical texts once."""
    texts = list(dict.fromkeys(map(str, errors)))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def invalid(path: str, value: Shown, detail: str) -> FieldError:
    """Make the error for a value of the right type that is not acceptable."""
    return FieldError(path, f"Invalid value: {_show(value)}: {detail}")


def _show(value: Shown) -> str:
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, Duration):
        return quote(format_duration(value))
    if isinstance(value, FlushFrequency):
        number = str(value.duration.nanoseconds)
        return number if value.is_number else quote(format_duration(value.duration))
    return msgspec.json.encode(value).decode()
