"""Configuration file → configuration, with upstream's strictness and its error texts.

Two kinds of problems exist. Unknown and duplicate fields are only noted: the file is still used,
and the caller logs the note. Everything else is a `ConfigError`. What a field may hold is read from
the annotations in `types`; zero values are replaced by defaults in `defaults`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from kubeproxy.config.document import json_type, read_document
from kubeproxy.config.types import (
    FlushFrequency,
    FormatOptions,
    JSONOptions,
    KubeProxyConfiguration,
    LoggingConfiguration,
    TextOptions,
    VModuleItem,
)
from kubeproxy.errors import ConfigError
from kubeproxy.go.duration import Duration, parse_duration
from kubeproxy.go.quantity import Quantity, parse_quantity
from kubeproxy.go.quoting import quote

_T = TypeVar("_T", bound=msgspec.Struct)
# Absent from a file these are empty, not the flags' defaults: they follow `bindAddress` later.
_DERIVED = ("healthzBindAddress", "metricsBindAddress")
_LOGGING_TYPES = (LoggingConfiguration, FormatOptions, TextOptions, JSONOptions, VModuleItem)


class Decoded(msgspec.Struct, frozen=True):
    """A configuration, and what the strict reading had to say about it (empty: nothing)."""

    config: KubeProxyConfiguration
    strict_problem: str = ""


class _TypeMismatch(ConfigError):
    """A value of the wrong JSON type; upstream reads on and reports the first of these."""


class _Place(msgspec.Struct, frozen=True, gc=False):
    """Where a value stands: the struct that holds it, and the path from the top."""

    struct: str
    path: str

    def mismatch(self, found: str, wanted: str) -> _TypeMismatch:
        field = f"Go struct field {self.struct}.{self.path}"
        return _TypeMismatch(f"json: cannot unmarshal {found} into {field} of type {wanted}")


class _Notes:
    """What was noticed on the way."""

    def __init__(self, strict: tuple[str, ...]) -> None:
        self.strict = list(strict)
        self.mismatch: _TypeMismatch | None = None


def decode_config(text: str) -> Decoded:
    """Read a file's text; ConfigError if it cannot be used at all."""
    raw = read_document(text)
    fields = raw.fields
    notes = _Notes(raw.strict_problems)
    for name in _DERIVED:
        if fields.get(name) is None:
            fields[name] = ""
    config = _read_struct(KubeProxyConfiguration, fields, "", notes)
    if notes.mismatch is not None:
        raise notes.mismatch
    problem = f"strict decoding error: {', '.join(notes.strict)}" if notes.strict else ""
    return Decoded(config, problem)


def _read_struct(cls: type[_T], raw: object, path: str, notes: _Notes) -> _T:
    """Fill a struct from a mapping; fields that are absent or null keep their default."""
    assert isinstance(raw, dict)
    hints = get_type_hints(cls, include_extras=True)
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(cls)}
    values: dict[str, object] = {}
    for name, item in raw.items():
        here = f"{path}.{name}" if path else name
        attribute = fields.get(name)
        if attribute is None:
            notes.strict.append(f"unknown field {quote(here)}")
            continue
        try:
            value = _read_field(hints[attribute], item, _Place(cls.__name__, here), notes)
        except _TypeMismatch as mismatch:
            notes.mismatch = notes.mismatch or mismatch
            continue
        if value is not None:
            values[attribute] = value
    return cls(**values)


def _read_field(hint: object, item: object, place: _Place, notes: _Notes) -> object:
    extra = _extra(hint)
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if item is None and (extra.get("pointer") or base is not Duration):
        return None
    if isinstance(base, type) and base in _SCALARS:
        return _SCALARS[base](item, place, str(extra.get("go", "")))
    if extra.get("comma"):
        text = _read_string(item, place)
        return tuple(text.split(",")) if text else ()
    return _read_collection(base, item, place, notes)


def _extra(hint: object) -> Mapping[str, object]:
    for mark in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        if isinstance(mark, msgspec.Meta) and mark.extra:
            return mark.extra
    return {}


def _read_collection(base: object, item: object, place: _Place, notes: _Notes) -> object:
    if isinstance(base, type) and issubclass(base, msgspec.Struct):
        if not isinstance(item, dict):
            raise place.mismatch(json_type(item), _go_name(base))
        return _read_struct(base, item, place.path, notes)
    if base == Mapping[str, bool]:
        return _read_gates(item, place)
    if base == tuple[VModuleItem, ...]:
        return _read_vmodule(item, place, notes)
    return _read_strings(item, place)


def _go_name(cls: type) -> str:
    package = "v1" if cls in _LOGGING_TYPES else "v1alpha1"
    return f"{package}.{cls.__name__}"


def _read_gates(item: object, place: _Place) -> dict[str, bool]:
    if not isinstance(item, dict):
        raise place.mismatch(json_type(item), "map[string]bool")
    return {name: _read_bool(value, place) for name, value in item.items() if value is not None}


def _read_vmodule(item: object, place: _Place, notes: _Notes) -> tuple[VModuleItem, ...]:
    if not isinstance(item, list):
        raise place.mismatch(json_type(item), "v1.VModuleConfiguration")
    return tuple(_read_vmodule_item(entry, place, notes, i) for i, entry in enumerate(item))


def _read_vmodule_item(item: object, place: _Place, notes: _Notes, index: int) -> VModuleItem:
    if not isinstance(item, dict):
        raise place.mismatch(json_type(item), "v1.VModuleItem")
    before = len(notes.strict)
    result = _read_struct(VModuleItem, item, place.path, notes)
    # Strict problems name the element, type errors do not.
    indexed = f"{place.path}[{index}]"
    notes.strict[before:] = [s.replace(place.path, indexed, 1) for s in notes.strict[before:]]
    return result


def _read_strings(item: object, place: _Place) -> tuple[str, ...]:
    if not isinstance(item, list):
        raise place.mismatch(json_type(item), "[]string")
    return tuple("" if text is None else _read_string(text, place) for text in item)


def _read_string(item: object, place: _Place, go: str = "") -> str:
    if not isinstance(item, str):
        raise place.mismatch(json_type(item), go or "string")
    return item


def _read_bool(item: object, place: _Place, go: str = "") -> bool:
    if not isinstance(item, bool):
        raise place.mismatch(json_type(item), go or "bool")
    return item


def _read_integer(item: object, place: _Place, go: str = "") -> int:
    """int32, or uint32 for verbosity; a fraction or a value out of range is shown."""
    wanted = go or "int32"
    lowest, highest = (0, (1 << 32) - 1) if go else (-(1 << 31), (1 << 31) - 1)
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise place.mismatch(json_type(item), wanted)
    if isinstance(item, float) or not lowest <= item <= highest:
        raise place.mismatch(f"number {_number(item)}", wanted)
    return item


def _read_float(item: object, place: _Place, _go: str = "") -> float:
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise place.mismatch(json_type(item), "float32")
    if abs(item) > 3.4028235677973366e38:
        raise place.mismatch(f"number {_number(item)}", "float32")
    return float(item)


def _read_duration(item: object, place: _Place, _go: str = "") -> Duration:
    text = "" if item is None else _read_string(item, place)
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _read_flush_frequency(item: object, place: _Place, _go: str = "") -> FlushFrequency:
    """A duration text, or a number of nanoseconds."""
    if isinstance(item, str):
        return FlushFrequency(_read_duration(item, place))
    if isinstance(item, int) and not isinstance(item, bool):
        return FlushFrequency(Duration(item), is_number=True)
    literal = _number(item) if isinstance(item, float) else msgspec.json.encode(item).decode()
    found = f"number {literal}" if isinstance(item, float) else json_type(item)
    raise ConfigError(
        f"invalid duration {quote(literal)}: json: cannot unmarshal {found} into "
        "Go value of type time.Duration"
    )


def _read_quantity(item: object, _place: _Place, _go: str = "") -> Quantity:
    text = item if isinstance(item, str) else msgspec.json.encode(item).decode()
    try:
        return parse_quantity(text.strip())
    except ValueError as error:
        raise ConfigError(str(error)) from None


_SCALARS: dict[type, Callable[[object, _Place, str], object]] = {
    str: _read_string,
    bool: _read_bool,
    int: _read_integer,
    float: _read_float,
    Duration: _read_duration,
    FlushFrequency: _read_flush_frequency,
    Quantity: _read_quantity,
}


def _number(value: float) -> str:
    """A number as JSON shows it: `1.5`, `1e+21`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", repr(value))
