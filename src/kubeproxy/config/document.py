"""The text of a configuration file → plain data of the right kind and version.

Upstream recognises JSON by its opening brace and reads everything else as YAML, which it turns into
JSON first. So a number is a JSON literal here, as written or as Go would write what YAML says:
`1e2` is no integer in a JSON file, and one in a YAML file, where it becomes `100`. Duplicate fields
do not stop it: the last one wins, and each is returned as a strict problem. What the fields mean is
left to `decode`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubeproxy.config.types import API_VERSION, KIND
from kubeproxy.errors import ConfigError
from kubeproxy.go.floats import format_json_number
from kubeproxy.go.quoting import quote
from kubeproxy.go.yaml import YamlError, parse_yaml

_SCHEME = "pkg/proxy/apis/config/scheme/scheme.go:29"
_KIND_STRUCT = (
    r'struct { APIVersion string "json:\"apiVersion,omitempty\""; '
    r'Kind string "json:\"kind,omitempty\"" }'
)


class Number:
    """A number as JSON has it. A plain class: msgspec would encode a struct field by field."""

    __slots__ = ("literal",)

    def __init__(self, literal: str) -> None:
        self.literal = literal


class RawConfig(msgspec.Struct, frozen=True):
    """The fields of a file, without kind and version, and a problem per duplicate field."""

    fields: dict[str, object]
    strict_problems: tuple[str, ...] = ()


def read_document(text: str) -> RawConfig:
    """Return the fields of a KubeProxyConfiguration. Raises ConfigError for any other text."""
    problems: list[str] = []
    is_json = text.lstrip().startswith("{")
    raw = _read_json(text, problems) if is_json else _read_yaml(text, problems)
    _check_kind(raw, text)
    fields = {name: value for name, value in raw.items() if name not in ("apiVersion", "kind")}
    return RawConfig(fields, tuple(problems))


def _read_yaml(text: str, problems: list[str]) -> dict[str, object]:
    try:
        document = parse_yaml(text)
    except YamlError as error:
        raise ConfigError(str(error)) from None
    if document.duplicates:
        lines = "".join(f"\n  {line}" for line in document.duplicates)
        problems.append(f"yaml: unmarshal errors:{lines}")
    return _top(_as_json(document.value))


def _read_json(text: str, problems: list[str]) -> dict[str, object]:
    import json

    class Pairs(list[tuple[str, object]]):
        """An object before duplicates are dropped."""

    try:
        value = json.loads(
            text,
            object_pairs_hook=Pairs,
            parse_constant=_refuse_constant,
            parse_int=Number,
            parse_float=Number,
        )
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"couldn't get version/kind; json parse error: {error}") from None

    def plain(value: object, path: str) -> object:
        if not isinstance(value, Pairs):
            return [plain(item, path) for item in value] if isinstance(value, list) else value
        result: dict[str, object] = {}
        for name, item in value:
            here = f"{path}.{name}" if path else name
            if name in result:
                problems.append(f"duplicate field {quote(here)}")
            result[name] = plain(item, here)
        return result

    return _top(plain(value, ""))


def _refuse_constant(name: str) -> object:
    raise ValueError(f"invalid character '{name[0]}' looking for beginning of value")


def _top(value: object) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        found = json_type(value)
        raise ConfigError(
            f"couldn't get version/kind; json parse error: json: cannot unmarshal {found} into "
            f"Go value of type {_KIND_STRUCT}"
        )
    return value


def _as_json(value: object) -> object:
    """Return what YAML says as JSON. Its keys are sorted: errors come in that order."""
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in sorted(value.items())}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Number(format_json_number(value))
    return value


def _check_kind(raw: Mapping[str, object], text: str) -> None:
    kind, version = (_kind_word(raw, name) for name in ("kind", "apiVersion"))
    if not kind:
        raise ConfigError(f"Object 'Kind' is missing in '{text}'")
    if not version:
        raise ConfigError(f"Object 'apiVersion' is missing in '{text}'")
    if version.count("/") > 1:
        raise ConfigError(f"unexpected GroupVersion string: {version}")
    if (version, kind) != (API_VERSION, KIND):
        raise ConfigError(
            f'no kind "{kind}" is registered for version "{version}" in scheme "{_SCHEME}"'
        )


def _kind_word(raw: Mapping[str, object], name: str) -> str:
    value = raw.get(name) or ""
    if not isinstance(value, str):
        raise ConfigError(
            "couldn't get version/kind; json parse error: json: cannot unmarshal "
            f"{json_type(value)} into Go struct field .{name} of type string"
        )
    return value


def json_type(value: object) -> str:
    """Name the JSON type of a value as `encoding/json` does in its errors."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, Number):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def json_text(value: object) -> str:
    """Return a value as JSON."""
    return msgspec.json.encode(value, enc_hook=_encode_number).decode()


def _encode_number(value: object) -> msgspec.Raw:
    assert isinstance(value, Number)
    return msgspec.Raw(value.literal.encode())
