"""Kinds of flag values: how a text becomes a value, and how the value is shown again.

A kind is data plus two pure functions, `parse` and `format`. Parsing gets the value so far, because
lists and maps grow when their flag is repeated, and raises ValueError with upstream's wording.
Which flag has which kind is in `flags`, the spelling of Go's scalars in `kubeproxy.go`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from kubeproxy.config.types import VModuleItem
from kubeproxy.facts.address import parse_cidr, parse_ip
from kubeproxy.go.csv import format_record, parse_record
from kubeproxy.go.duration import Duration, format_duration, parse_duration
from kubeproxy.go.floats import format_general, parse_float32
from kubeproxy.go.hostport import split_host_port
from kubeproxy.go.quantity import Quantity, parse_quantity
from kubeproxy.go.quoting import quote
from kubeproxy.go.text import format_bool, parse_bool, parse_digits, parse_int32, parse_uint31
from kubeproxy.version import KUBERNETES_VERSION

Value = (
    str
    | bool
    | int
    | float
    | Duration
    | Quantity
    | tuple[str, ...]
    | tuple[VModuleItem, ...]
    | Mapping[str, bool]
)


class FlagKind(msgspec.Struct, frozen=True):
    """One type of flag."""

    name: str
    """The placeholder that help shows after the flag."""
    zero: Value
    parse: Callable[[str, Value | None], Value]
    """Takes the text and the value given earlier on the same command line, if any."""
    format: Callable[[Value], str]
    bare: str = ""
    """The value of the flag when it is given without one. Empty if the flag needs a value."""
    is_quoted: bool = False
    """Does help show the default in quotes?"""


def _ignoring_earlier(parse: Callable[[str], Value]) -> Callable[[str, Value | None], Value]:
    return lambda text, _earlier: parse(text)


def _parse_text(text: str) -> Value:
    return text


def _format_bool(value: Value) -> str:
    assert isinstance(value, bool)
    return format_bool(value)


def _format_float(value: Value) -> str:
    assert isinstance(value, float)
    return format_general(value)


def _format_duration(value: Value) -> str:
    assert isinstance(value, Duration)
    return format_duration(value)


def _parse_address(text: str) -> Value:
    if text and parse_ip(text) is None:
        raise ValueError(f"{quote(text)} is not a valid IP address")
    return text


def _parse_endpoint(text: str) -> Value:
    """Accept `IP`, `IP:port` or nothing, which leaves the configured value alone."""
    if not text or parse_ip(text) is not None:
        return text
    try:
        host, port = split_host_port(text)
    except ValueError as error:
        shown = quote(text)
        raise ValueError(f"{shown} is not in a valid format (ip or ip:port): {error}") from None
    if parse_ip(host) is None:
        raise ValueError(f"{quote(host)} is not a valid IP address")
    if not re.fullmatch(r"[0-9]+", port) or parse_digits(port) > 65535:
        raise ValueError(f"{quote(port)} is not a valid number")
    return text


def _parse_list(text: str, earlier: Value | None) -> Value:
    """Parse comma-separated texts with CSV quoting. A repeated flag appends."""
    head = earlier if isinstance(earlier, tuple) else ()
    return tuple(str(item) for item in head) + _parse_items(text)


def _parse_items(text: str) -> tuple[str, ...]:
    return parse_record(text) if text else ()


def _format_list(value: Value) -> str:
    assert isinstance(value, tuple)
    return f"[{format_record(tuple(map(str, value)))}]"


def _parse_bool_map(text: str, earlier: Value | None) -> Value:
    """Parse `A=true,B=false`. A repeated flag is merged."""
    merged: dict[str, bool] = dict(earlier) if isinstance(earlier, Mapping) else {}
    for pair in filter(None, text.split(",")):
        name, equals, word = (part.strip() for part in pair.partition("="))
        if not equals:
            raise ValueError("malformed pair, expect string=bool")
        try:
            merged[name] = parse_bool(word)
        except ValueError as error:
            raise ValueError(f"invalid value of {name}: {word}, err: {error}") from None
    return merged


def _format_bool_map(value: Value) -> str:
    assert isinstance(value, Mapping)
    return ",".join(f"{name}={format_bool(on)}" for name, on in sorted(value.items()))


def _parse_vmodule(text: str, earlier: Value | None) -> Value:
    head = earlier if isinstance(earlier, tuple) else ()
    known = tuple(item for item in head if isinstance(item, VModuleItem))
    return known + tuple(_parse_vmodule_item(item) for item in text.split(",") if item)


def _parse_vmodule_item(text: str) -> VModuleItem:
    pattern, _, level = text.partition("=")
    if not pattern or not level or "=" in level:
        raise ValueError(f"{quote(text)} does not have the pattern=N format")
    try:
        return VModuleItem(file_pattern=pattern, verbosity=parse_uint31(level))
    except ValueError as error:
        raise ValueError(f"parsing verbosity in {quote(text)}: {error}") from None


def _format_vmodule(value: Value) -> str:
    assert isinstance(value, tuple)
    items = (item for item in value if isinstance(item, VModuleItem))
    return ",".join(f"{item.file_pattern}={item.verbosity}" for item in items)


def _parse_version(text: str) -> Value:
    """Accept a truth value, `raw`, or a version with our number and any suffix."""
    if text == "raw":
        return text
    if text.startswith("v"):
        return _same_release(text)
    return format_bool(parse_bool(text))


def _same_release(text: str) -> str:
    number = re.match(r"v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:[-+][0-9A-Za-z.+-]+)?$", text)
    if number is None:
        raise ValueError(f"could not parse {quote(text)} as version")
    if f"v{number[1]}.{number[2]}.{number[3]}" != KUBERNETES_VERSION:
        raise ValueError(
            f"version {quote(text)} must match major/minor/patch of default version "
            f"{quote(KUBERNETES_VERSION)}"
        )
    return text


MOST_SERIES = 250


def _parse_series(text: str) -> Value:
    """Accept how many things have metrics of their own: each costs memory in every scraper."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > MOST_SERIES:
        raise ValueError(f"{quote(text)} is not a number from 0 to {MOST_SERIES}")
    return int(text)


def _parse_port_range(text: str) -> Value:
    """Accept `from-to`, `base+size` or nothing, which means any port."""
    match = re.fullmatch(r"([0-9]{1,5})(?:([-+])([0-9]{1,5}))?", text) if text else None
    if text and match is None:
        raise ValueError(f"{quote(text)} is not a valid port range: use from-to or base+size")
    if match is not None:
        first = int(match[1])
        last = int(match[3]) if match[2] == "-" else first + int(match[3] or 0)
        if not 0 < first <= last <= 65535:
            raise ValueError(
                f"{quote(text)} is not a valid port range: ports must be 1-65535, ascending"
            )
    return text


def _parse_cidrs(text: str, earlier: Value | None) -> Value:
    """Accept comma-separated networks. A repeated flag appends."""
    for item in _parse_items(text):
        if parse_cidr(item.strip()) is None:
            raise ValueError(f"{quote(item)} is not a valid CIDR")
    return _parse_list(text, earlier)


def _format_items(value: Value) -> str:
    """Format as it is given, without the brackets that upstream's lists are shown with."""
    assert isinstance(value, tuple)
    return format_record(tuple(map(str, value))) if value else ""


def port_range(text: str) -> tuple[int, int]:
    """Return the first and the last of `port` or `from-to`. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < first <= last <= 65535:
        raise ValueError(f"{quote(text)} is not a port or a range of ports, such as 2379-2380")
    return first, last


def _parse_ports(text: str, earlier: Value | None) -> Value:
    """Accept comma-separated ports and ranges. A repeated flag appends."""
    for item in _parse_items(text):
        port_range(item)
    return _parse_list(text, earlier)


def _parse_iptables_variant(text: str) -> Value:
    if text not in ("auto", "nft", "legacy"):
        raise ValueError(f"{quote(text)} is not a variant of iptables: use auto, nft or legacy")
    return text


STRING = FlagKind("string", "", _ignoring_earlier(_parse_text), str, is_quoted=True)
PROXY_MODE = FlagKind("ProxyMode", "", _ignoring_earlier(_parse_text), str)
LOCAL_MODE = FlagKind("LocalMode", "", _ignoring_earlier(_parse_text), str)
BOOL = FlagKind("", False, _ignoring_earlier(parse_bool), _format_bool, bare="true")
INT32 = FlagKind("int32", 0, _ignoring_earlier(parse_int32), str)
LEVEL = FlagKind("Level", 0, _ignoring_earlier(parse_uint31), str)
FLOAT32 = FlagKind("float32", 0.0, _ignoring_earlier(parse_float32), _format_float)
DURATION = FlagKind("duration", Duration(0), _ignoring_earlier(parse_duration), _format_duration)
ADDRESS = FlagKind("ip", "", _ignoring_earlier(_parse_address), str)
ENDPOINT = FlagKind("ipport", "", _ignoring_earlier(_parse_endpoint), str)
STRINGS = FlagKind("strings", (), _parse_list, _format_list)
CIDRS = FlagKind("cidrs", (), _parse_cidrs, _format_items)
PORTS = FlagKind("ports", (), _parse_ports, _format_items)
BOOL_MAP = FlagKind("mapStringBool", {}, _parse_bool_map, _format_bool_map)
QUANTITY = FlagKind("quantity", Quantity(), _ignoring_earlier(parse_quantity), str)
VMODULE = FlagKind("pattern=N,...", (), _parse_vmodule, _format_vmodule)
VERSION = FlagKind("version[=true]", "false", _ignoring_earlier(_parse_version), str, bare="true")
IPTABLES_VARIANT = FlagKind("variant", "auto", _ignoring_earlier(_parse_iptables_variant), str)
SERIES = FlagKind("count", 0, _ignoring_earlier(_parse_series), str)
PORT_RANGE = FlagKind("port-range", "", _ignoring_earlier(_parse_port_range), str)
