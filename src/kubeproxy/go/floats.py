"""Floating point numbers as Go reads and prints them.

Go has one notion of a number's digits, the fewest that read back as the same value (Python's
`repr` finds the same ones), and several rules for where a power of ten takes over. Flags and
metrics follow one rule, JSON another, so each has its function here.

A float32 is held as the Python number with its fewest digits: `3.1415927`, not
`3.1415927410125732`, so that it is shown as Go shows it. `parse_float32` raises ValueError with
Go's error text.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal

from kubeproxy.go.quoting import quote

# An underscore may separate two digits, and stand after the prefix 0x. Hexadecimal numbers need
# an exponent, a power of two. NaN has no sign.
_DIGITS = "[0-9](?:_?[0-9])*"
_HEX = "[0-9a-f](?:_?[0-9a-f])*"
_DECIMAL = re.compile(
    rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:e[+-]?{_DIGITS})?", re.I | re.A
)
_HEXADECIMAL = re.compile(
    rf"[+-]?0x(?:_?{_HEX}(?:\.(?:{_HEX})?)?|\.{_HEX})p[+-]?{_DIGITS}", re.I | re.A
)
_WORD = re.compile(r"[+-]?inf(?:inity)?|nan", re.I | re.A)
_SMALLEST_WITHOUT_EXPONENT = 1e-6
_JSON_EXPONENT = 1e21
"""From here on `encoding/json` writes numbers with an exponent."""


def parse_float32(text: str) -> float:
    """Parse a number as `strconv.ParseFloat` does, and round it to a float32."""
    plain = text.replace("_", "")
    try:
        if _WORD.fullmatch(text):
            return float(text)
        if _DECIMAL.fullmatch(text):
            return _round_to_float32(float(plain))
        if _HEXADECIMAL.fullmatch(text):
            return _round_to_float32(float.fromhex(plain))
    except OverflowError:
        reason = f"strconv.ParseFloat: parsing {quote(text)}: value out of range"
        raise ValueError(reason) from None
    raise ValueError(f"strconv.ParseFloat: parsing {quote(text)}: invalid syntax")


def _round_to_float32(value: float) -> float:
    """Return the number with the fewest digits that is the nearest float32. Raises OverflowError.

    Rounding twice (to 64 bits first) may differ from Go's for texts of 17 digits or more.
    """
    if math.isinf(value):
        raise OverflowError
    packed = struct.pack("<f", value)
    (nearest,) = struct.unpack("<f", packed)
    shown = (float(f"{nearest:.{digits}g}") for digits in range(1, 9))
    # Rounding up the largest one leaves the range; nine digits are always enough.
    return next((v for v in shown if _is_float32(v, packed)), float(f"{nearest:.9g}"))


def _is_float32(value: float, packed: bytes) -> bool:
    try:
        return struct.pack("<f", value) == packed
    except OverflowError:
        return False


def format_json_number(value: float) -> str:
    """Format as `encoding/json` does: `5`, `1.5`, `0.00001`, `1e-7`, `1e+21`. Integers in full.

    The exponent has no leading zero, unlike everywhere else in Go.
    """
    if isinstance(value, int):
        return str(value)
    if value == 0:
        return format_general(value)
    sign, digits, exponent = _shortest_digits(value)
    if _SMALLEST_WITHOUT_EXPONENT <= abs(value) < _JSON_EXPONENT:
        return sign + _positional(digits, exponent)
    return f"{sign}{_mantissa(digits)}e{exponent:+d}"


def format_general(value: float) -> str:
    """Format as `strconv.FormatFloat(value, 'g', -1, 64)` does: flags and metrics.

    An exponent is used below 1e-4 and from 1e6 on: `1`, `0.001`, `1e+06`, `1.7632e+09`, `+Inf`.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    sign, digits, exponent = _shortest_digits(value)
    if exponent < -4 or exponent >= 6:
        return f"{sign}{_mantissa(digits)}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return sign + _positional(digits, exponent)


def format_float32(value: float) -> str:
    """Format as `strconv.FormatFloat(value, 'g', -1, 32)` does: a key of YAML."""
    if math.isnan(value):
        return "NaN"
    try:
        return format_general(_round_to_float32(value))
    except OverflowError:
        return format_general(math.copysign(math.inf, value))


def _shortest_digits(value: float) -> tuple[str, str, int]:
    """Return sign, significant digits, and the decimal exponent of the first digit."""
    sign, digits, last = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    return "-" * sign, text, int(last) + len(text) - 1


def _mantissa(digits: str) -> str:
    return digits[0] + ("." + digits[1:] if len(digits) > 1 else "")


def _positional(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{whole}.{fraction}" if fraction else whole
