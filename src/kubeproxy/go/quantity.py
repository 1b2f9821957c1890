"""Sizes as Kubernetes writes them: `512`, `2Ki`, `1M`.

Only the log buffer sizes use this. `Quantity` keeps the number of bytes and the canonical text, so
that a configuration is written back in the form upstream would write.
"""

from __future__ import annotations

import re
from fractions import Fraction

import msgspec

_SYNTAX = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_EXPONENT = re.compile(r"[eE]([-+]?[0-9]{1,9})")
_LARGEST_EXPONENT = 1000
"""Ours: upstream computes with any, for minutes."""
_MOST_DIGITS = 4000
_LARGEST = (1 << 63) - 1
_NANO = 10**9
"""Kubernetes keeps nothing finer than one billionth."""
_SYNTAX_ERROR = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_NUMERIC_ERROR = "unable to parse numeric part of quantity"
_SUFFIX_ERROR = "unable to parse quantity's suffix"


class Quantity(msgspec.Struct, frozen=True, gc=False):
    """An amount in whole units, rounded up, and its canonical spelling."""

    value: int = 0
    text: str = "0"

    def __str__(self) -> str:
        return self.text


def parse_quantity(text: str) -> Quantity:
    """Parse an amount. Raises ValueError with Kubernetes' wording."""
    match = _SYNTAX.fullmatch(text)
    if match is None or not text:
        raise ValueError(_SYNTAX_ERROR)
    sign, whole, fraction, suffix = match[1], match[2], match[3] or "", match[4]
    scale = _scale(suffix)
    if len(whole) + len(fraction) > _MOST_DIGITS:
        raise ValueError(_NUMERIC_ERROR)
    amount = Fraction(int(whole + fraction or "0"), 10 ** len(fraction)) * scale
    amount = Fraction(_ceiling(amount * _NANO), _NANO)
    if suffix in _BINARY:
        amount = min(amount, Fraction(_LARGEST))
    is_kept = _is_canonical(whole or "0", fraction, suffix)
    signed = -amount if sign == "-" else amount
    value = max(-_LARGEST, min(_ceiling(signed), _LARGEST))
    return Quantity(value, text if is_kept else _format_amount(signed, suffix))


def _scale(suffix: str) -> Fraction:
    if suffix in _BINARY:
        return Fraction(1024) ** _BINARY[suffix]
    exponent = _exponent(suffix)
    if exponent is None or abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(_SUFFIX_ERROR)
    return Fraction(10) ** exponent


def _exponent(suffix: str) -> int | None:
    """Return the power of ten that a decimal suffix stands for."""
    match = _EXPONENT.fullmatch(suffix)
    return int(match[1]) if match else _DECIMAL.get(suffix)


def _is_canonical(whole: str, fraction: str, suffix: str) -> bool:
    """Does Kubernetes show the amount as it was written? It looks at few of its digits."""
    digits = whole + fraction
    if suffix in _BINARY:
        room = 14 - len(whole) - 3 * _BINARY[suffix]
        return not fraction and room >= 0 and int(whole) % 8 != 0
    places = (_exponent(suffix) or 0) - len(fraction)
    if len(digits) > 18 or places < -9 or places % 3:
        return False
    return not digits.endswith("000") and not digits.startswith("0")


def _format_amount(amount: Fraction, suffix: str) -> str:
    if amount == 0:
        return "0"
    if suffix in _BINARY and abs(amount) >= 1024 and amount.denominator == 1:
        return _format_binary(int(amount))
    is_exponent = _EXPONENT.fullmatch(suffix) is not None
    mantissa, exponent = _reduce(amount, highest=_LARGEST_EXPONENT + 2 if is_exponent else 18)
    if is_exponent:
        return f"{mantissa}e{exponent}" if exponent else str(mantissa)
    names = {power: name for name, power in _DECIMAL.items()}
    return f"{mantissa}{names[exponent]}"


def _format_binary(amount: int) -> str:
    names = ("", *_BINARY)
    power = 0
    while amount % 1024 == 0 and power < len(names) - 1:
        amount //= 1024
        power += 1
    return f"{amount}{names[power]}"


def _reduce(amount: Fraction, *, highest: int) -> tuple[int, int]:
    """Return mantissa and power of ten, the power a multiple of three and as large as possible."""
    digits, exponent = int(amount * _NANO), -9
    while exponent + 3 <= highest and digits % 1000 == 0:
        digits //= 1000
        exponent += 3
    return digits, exponent


def _ceiling(amount: Fraction) -> int:
    return -((-amount.numerator) // amount.denominator)
