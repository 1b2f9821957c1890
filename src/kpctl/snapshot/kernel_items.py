"""What a mode has in the kernel as plain data, so that a file can hold it.

An item or value is a tree of frozen structs, named tuples, enumerations, bytes and scalars. A
scalar stands for itself. Everything else is a list that begins with a word: the name of its type,
followed by its fields, or one of the words below. Which types there are follows from the mode's
`Item` and `Value`, so that a new one needs no line here, and a file can name no other.
"""

from __future__ import annotations

import types
from base64 import b64decode, b64encode
from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import astuple, fields

from kubeproxy.errors import ProxyError
from kubeproxy.modes.base import AnyItem, AnyValue

Data: TypeAlias = Any
"""JSON."""

_BYTES, _TEXT, _TUPLE, _MAPPING = "bytes", "text", "tuple", "mapping"


def encode_items(items: Mapping[AnyItem, AnyValue]) -> list[Data]:
    """Items with their values as plain data."""
    return [[encode_value(item), encode_value(value)] for item, value in items.items()]


def decode_items(data: object, mode: str) -> dict[AnyItem, AnyValue]:
    """The reverse, for items of this mode. Raises ProxyError."""
    known = item_types(mode)
    try:
        assert isinstance(data, list)
        return {decode_value(item, known): decode_value(value, known) for item, value in data}
    except (AssertionError, TypeError, ValueError, LookupError, RecursionError) as error:
        raise ProxyError(f"items of the kernel are not understood ({error!r})") from error


def encode_value(value: object) -> Data:
    """One item, value, or part of one."""
    match value:
        case Enum():
            return [type(value).__name__, value.value]
        case None | bool() | int() | float():
            return value
        case str():
            return _encode_text(value)
        case bytes():
            return [_BYTES, b64encode(value).decode()]
        case Struct():
            return [type(value).__name__, *map(encode_value, astuple(value))]
        case tuple():
            word = type(value).__name__ if hasattr(value, "_fields") else _TUPLE
            return [word, *map(encode_value, value)]
        case Mapping():
            pairs = (part for pair in value.items() for part in pair)
            return [_MAPPING, *map(encode_value, pairs)]
    raise TypeError(f"{type(value).__name__} has no form as plain data")


def _encode_text(text: str) -> Data:
    """Another program may have put bytes into a name that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return [_TEXT, b64encode(text.encode(errors="surrogateescape")).decode()]
    return text


def decode_value(data: Data, known: Mapping[str, type]) -> Any:
    """The reverse of `encode_value`."""
    if not isinstance(data, list):
        return data
    word, *parts = data
    match word:
        case "bytes":  # _BYTES and so on: a name alone would match anything
            return b64decode(parts[0])
        case "text":
            return b64decode(parts[0]).decode(errors="surrogateescape")
    values = [decode_value(part, known) for part in parts]
    match word:
        case "tuple":
            return tuple(values)
        case "mapping":
            return dict(zip(values[::2], values[1::2], strict=True))
    return known[word](*values)


@cache
def item_types(mode: str) -> Mapping[str, type]:
    """Every struct, named tuple and enumeration that the items and values of a mode consist of."""
    module = import_module(f"kubeproxy.modes.{mode}.items")
    found: dict[str, type] = {}
    _collect(module.Item, found)
    _collect(module.Value, found)
    return found


def _collect(hint: object, found: dict[str, type]) -> None:
    for part in get_args(hint):
        _collect(part, found)
    if not isinstance(hint, type) or isinstance(hint, types.GenericAlias):
        return
    names = _field_names(hint)
    if names is None:
        return
    if found.setdefault(hint.__name__, hint) is not hint:
        raise TypeError(f"two types of items are called {hint.__name__}")
    hints = get_type_hints(hint)
    for name in names:
        _collect(hints[name], found)


def _field_names(found: type) -> tuple[str, ...] | None:
    """The fields of a struct or named tuple; none of an enumeration; None for another type."""
    if issubclass(found, Struct):
        return tuple(field.name for field in fields(found))
    if issubclass(found, Enum):
        return ()
    names: tuple[str, ...] | None = getattr(found, "_fields", None)
    return names
