"""The effective configuration as upstream shows it: `--write-config-to` and `/configz`.

A written file reads back as the same configuration. Which fields are left out when they are empty
is upstream's choice, field by field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kubeproxy.config.types import API_VERSION, KIND, FlushFrequency, KubeProxyConfiguration
from kubeproxy.errors import ConfigError
from kubeproxy.go.duration import Duration, format_duration
from kubeproxy.go.floats import format_general, format_json_number
from kubeproxy.go.quantity import Quantity
from kubeproxy.go.quoting import quote
from kubeproxy.go.yaml import format_yaml

# Left out when they are empty; every other field is always shown.
_OMITTED_WHEN_EMPTY = frozenset({"featureGates", "vmodule", "splitStream", "windowsRunAsService"})

_LONGEST_SHOWN = 60
_JSON_EXPONENT = 1e21
"""From here on JSON has whole numbers with an exponent."""


def config_document(config: KubeProxyConfiguration) -> dict[str, object]:
    """Return the configuration as plain data under its v1alpha1 names, with kind and version."""
    return {"apiVersion": API_VERSION, "kind": KIND, **_struct(config)}


def format_config(config: KubeProxyConfiguration) -> str:
    """Return the configuration as YAML. Raises ConfigError if a number cannot be written."""
    qps = config.client_connection.qps
    if not math.isfinite(qps):  # accepted as a flag, but the file passes through JSON
        raise ConfigError(f"json: unsupported value: {format_general(qps)}")
    try:
        return format_yaml(config_document(config))
    except UnicodeEncodeError as error:  # a byte of a flag that is not UTF-8
        text = error.object.encode("utf-8", "backslashreplace").decode()[:_LONGEST_SHOWN]
        raise ConfigError(f"cannot write {quote(text)}: it is not text in UTF-8") from None


def write_config(path: str, config: KubeProxyConfiguration) -> None:
    """Write the configuration to a file, new or not. Raises OSError or ConfigError."""
    Path(path).write_text(format_config(config))


def _struct(value: msgspec.Struct) -> dict[str, object]:
    shown: dict[str, object] = {}
    for field in msgspec.structs.fields(value):
        item = _plain(getattr(value, field.name), field.encode_name)
        if item or field.encode_name not in _OMITTED_WHEN_EMPTY:
            shown[field.encode_name] = item
    return shown


def _plain(value: object, name: str) -> object:
    if isinstance(value, Duration):
        return format_duration(value)
    if isinstance(value, FlushFrequency):
        duration = value.duration
        return duration.nanoseconds if value.is_number else format_duration(duration)
    if isinstance(value, Quantity):
        return value.text
    if isinstance(value, msgspec.Struct):
        return _struct(value)
    if isinstance(value, tuple):
        return ",".join(value) if name == "clusterCIDR" else [_plain(item, "") for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _JSON_EXPONENT:
        return int(format_json_number(value))
    return dict(value) if isinstance(value, Mapping) else value
