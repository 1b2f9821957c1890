"""Floating point numbers as Go reads and prints them.

Go has one notion of a number's digits, the fewest that read back as the same value (Python's
`repr` finds the same ones), and several rules for where a power of ten takes over. Metrics,
flags and JSON errors each follow their own rule, so each has its function here.
`parse_float32` raises ValueError with Go's error text.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal

from kubeproxy.go.quoting import quote

_SYNTAX = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)")
_JSON_EXPONENT = 1e21
"""From here on `encoding/json` writes whole numbers with an exponent."""


def parse_float32(text: str) -> float:
    """Parse a number that fits a float32, as `strconv.ParseFloat` does."""
    if not _SYNTAX.fullmatch(text.lower()):
        raise ValueError(f"strconv.ParseFloat: parsing {quote(text)}: invalid syntax")
    value = float(text)
    if math.isfinite(value) and not _fits_float32(value):
        raise ValueError(f"strconv.ParseFloat: parsing {quote(text)}: value out of range")
    return value


def _fits_float32(value: float) -> bool:
    try:
        struct.pack("<f", value)
    except OverflowError:
        return False
    return True


def format_float(value: float) -> str:
    """Format the value of a flag: whole numbers below 1e21 in full, `2.5`, `0.1`."""
    if value.is_integer() and abs(value) < _JSON_EXPONENT:
        return str(int(value))
    return repr(value)


def format_json_number(value: float) -> str:
    """Format a number for an error of `encoding/json`: `1.5`, `1e+21`.

    Integers are shown in full. The exponent has no leading zero, unlike everywhere else in Go.
    """
    if isinstance(value, int):
        return str(value)
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", format_float(value))


def format_general(value: float) -> str:
    """Format as `strconv.FormatFloat(value, 'g', -1, 64)` does: metrics.

    An exponent is used below 1e-4 and from 1e6 on: `1`, `0.001`, `1e+06`, `1.7632e+09`, `+Inf`.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    sign, digits, exponent = _shortest_digits(value)
    if exponent < -4 or exponent >= 6:
        mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return sign + _positional(digits, exponent)


def _shortest_digits(value: float) -> tuple[str, str, int]:
    """Return sign, significant digits, and the decimal exponent of the first digit."""
    sign, digits, last = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    return "-" * sign, text, int(last) + len(text) - 1


def _positional(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{whole}.{fraction}" if fraction else whole
