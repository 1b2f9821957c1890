"""Answers of a daemon as values, from bytes that may be of another version, damaged or a joke."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode_answer(data: bytes, kind: type[T]) -> T:
    """Decode one answer. Raises msgspec.DecodeError, and nothing else, if it is none."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error
