"""Configuration file → configuration, with upstream's strictness and its error texts.

There are two classes of problems. Unknown and duplicate fields are only noted: the file is still
used, and the caller logs the note. Everything else raises `ConfigError`. What a field may hold is
read from the annotations in `types`. Replacing zero values by defaults is left to `defaults`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from kubeproxy.config.document import Number, json_text, json_type, read_document
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
from kubeproxy.go.floats import parse_float32
from kubeproxy.go.quantity import Quantity, parse_quantity
from kubeproxy.go.quoting import quote
from kubeproxy.go.text import parse_digits

_T = TypeVar("_T", bound=msgspec.Struct)
# Absent from a file these are empty, not the flags' defaults: `defaults` derives them from
# `bindAddress`.
_DERIVED = ("healthzBindAddress", "metricsBindAddress")
_LOGGING_TYPES = (LoggingConfiguration, FormatOptions, TextOptions, JSONOptions, VModuleItem)


class Decoded(msgspec.Struct, frozen=True):
    """A configuration, and the text of what strict decoding would refuse, empty if nothing."""

    config: KubeProxyConfiguration
    strict_problem: str = ""


class _TypeMismatch(ConfigError):
    """A value of the wrong JSON type. Upstream reads on and reports the first of these."""


class _Place(msgspec.Struct, frozen=True, gc=False):
    """The position of a value: the struct that holds it, and the path from the top."""

    struct: str
    path: str

    def mismatch(self, found: str, wanted: str) -> _TypeMismatch:
        field = f"Go struct field {self.struct}.{self.path}"
        return _TypeMismatch(f"json: cannot unmarshal {found} into {field} of type {wanted}")


class _Problems:
    """Problems found so far that do not stop the reading."""

    def __init__(self, strict: tuple[str, ...]) -> None:
        self.strict = list(strict)
        self.mismatch: _TypeMismatch | None = None


def decode_config(text: str) -> Decoded:
    """Decode a file's text. Raises ConfigError if it cannot be used at all."""
    raw = read_document(text)
    fields = raw.fields
    problems = _Problems(raw.strict_problems)
    for name in _DERIVED:
        if fields.get(name) is None:
            fields[name] = ""
    config = _read_struct(KubeProxyConfiguration, fields, "", problems)
    if problems.mismatch is not None:
        raise problems.mismatch
    problem = f"strict decoding error: {', '.join(problems.strict)}" if problems.strict else ""
    return Decoded(config, problem)


def _read_struct(cls: type[_T], raw: object, path: str, problems: _Problems) -> _T:
    """Fill a struct from a mapping. Fields that are absent or null keep their default."""
    assert isinstance(raw, dict)
    hints = get_type_hints(cls, include_extras=True)
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(cls)}
    values: dict[str, object] = {}
    for name, item in raw.items():
        here = f"{path}.{name}" if path else name
        attribute = fields.get(name)
        if attribute is None:
            problems.strict.append(f"unknown field {quote(here)}")
            continue
        try:
            value = _read_field(hints[attribute], item, _Place(cls.__name__, here), problems)
        except _TypeMismatch as mismatch:
            problems.mismatch = problems.mismatch or mismatch
            continue
        if value is not None:
            values[attribute] = value
    return cls(**values)


def _read_field(hint: object, item: object, place: _Place, problems: _Problems) -> object:
    extra = _extra(hint)
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if item is None and (extra.get("pointer") or base is not Duration):
        return None
    if isinstance(base, type) and base in _SCALARS:
        return _SCALARS[base](item, place, str(extra.get("go", "")))
    if extra.get("comma"):
        text = _read_string(item, place)
        return tuple(text.split(",")) if text else ()
    return _read_collection(base, item, place, problems)


def _extra(hint: object) -> Mapping[str, object]:
    for mark in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        if isinstance(mark, msgspec.Meta) and mark.extra:
            return mark.extra
    return {}


def _read_collection(base: object, item: object, place: _Place, problems: _Problems) -> object:
    if isinstance(base, type) and issubclass(base, msgspec.Struct):
        if not isinstance(item, dict):
            raise place.mismatch(json_type(item), _go_name(base))
        return _read_struct(base, item, place.path, problems)
    if base == Mapping[str, bool]:
        return _read_gates(item, place)
    if base == tuple[VModuleItem, ...]:
        return _read_vmodule(item, place, problems)
    return _read_strings(item, place)


def _go_name(cls: type) -> str:
    package = "v1" if cls in _LOGGING_TYPES else "v1alpha1"
    return f"{package}.{cls.__name__}"


def _read_gates(item: object, place: _Place) -> dict[str, bool]:
    if not isinstance(item, dict):
        raise place.mismatch(json_type(item), "map[string]bool")
    return {name: _read_bool(value, place) for name, value in item.items() if value is not None}


def _read_vmodule(item: object, place: _Place, problems: _Problems) -> tuple[VModuleItem, ...]:
    if not isinstance(item, list):
        raise place.mismatch(json_type(item), "v1.VModuleConfiguration")
    return tuple(_read_vmodule_item(entry, place, problems, i) for i, entry in enumerate(item))


def _read_vmodule_item(item: object, place: _Place, problems: _Problems, index: int) -> VModuleItem:
    if not isinstance(item, dict):
        raise place.mismatch(json_type(item), "v1.VModuleItem")
    before = len(problems.strict)
    result = _read_struct(VModuleItem, item, place.path, problems)
    # Upstream's strict problems name the element (`vmodule[0]`), its type errors do not.
    indexed = f"{place.path}[{index}]"
    problems.strict[before:] = [s.replace(place.path, indexed, 1) for s in problems.strict[before:]]
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
    """Read an int32, or a uint32 for verbosity. The error shows a fraction or excess value."""
    wanted = go or "int32"
    lowest, highest = (0, (1 << 32) - 1) if go else (-(1 << 31), (1 << 31) - 1)
    if not isinstance(item, Number):
        raise place.mismatch(json_type(item), wanted)
    value = _integer(item)
    if value is None or not lowest <= value <= highest:
        raise place.mismatch(f"number {item.literal}", wanted)
    return value


def _integer(number: Number) -> int | None:
    """Return the value of an integer literal, or None if it has a fraction or an exponent."""
    digits = number.literal.removeprefix("-")
    if not digits.isdigit():
        return None
    return -parse_digits(digits) if number.literal.startswith("-") else parse_digits(digits)


def _read_float(item: object, place: _Place, _go: str = "") -> float:
    if not isinstance(item, Number):
        raise place.mismatch(json_type(item), "float32")
    try:
        return parse_float32(item.literal)
    except ValueError:  # it does not fit
        raise place.mismatch(f"number {item.literal}", "float32") from None


def _read_duration(item: object, place: _Place, _go: str = "") -> Duration:
    text = "" if item is None else _read_string(item, place)
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _read_flush_frequency(item: object, place: _Place, _go: str = "") -> FlushFrequency:
    """Read a duration text, or a number of nanoseconds."""
    if isinstance(item, str):
        return FlushFrequency(_read_duration(item, place))
    found, literal = json_type(item), json_text(item)
    if isinstance(item, Number):
        nanoseconds = _integer(item)
        if nanoseconds is not None and -(1 << 63) <= nanoseconds < 1 << 63:
            return FlushFrequency(Duration(nanoseconds), is_number=True)
        found = f"number {literal}"
    raise ConfigError(
        f"invalid duration {quote(literal)}: json: cannot unmarshal {found} into "
        "Go value of type time.Duration"
    )


def _read_quantity(item: object, _place: _Place, _go: str = "") -> Quantity:
    # Upstream looks at the JSON, where an escape such as \t stays what it is.
    text = json_text(item).removeprefix('"').removesuffix('"')
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
