"""Sizes as Kubernetes writes them: `512`, `2Ki`, `1M`.

Only the log buffer sizes use this. `Quantity` keeps the number of bytes and the canonical text, so
that a configuration is written back in the form upstream would write.
"""

from __future__ import annotations

import re
from fractions import Fraction

import msgspec

_SYNTAX = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([eEinumkKMGTP]*[-+]?[0-9]*)")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_EXPONENT = re.compile(r"[eE][-+]?[0-9]+")
_SYNTAX_ERROR = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
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
    if match is None:
        raise ValueError(_SYNTAX_ERROR)
    number, suffix = Fraction(match[1]), match[2]
    # Kubernetes keeps nothing finer than one billionth.
    amount = Fraction(_ceiling(number * _scale(suffix) * 10**9), 10**9)
    return Quantity(_ceiling(amount), _format_amount(amount, suffix))


def _scale(suffix: str) -> Fraction:
    if suffix in _BINARY:
        return Fraction(1024) ** _BINARY[suffix]
    if suffix in _DECIMAL:
        return Fraction(10) ** _DECIMAL[suffix]
    if _EXPONENT.fullmatch(suffix):
        return Fraction(10) ** int(suffix[1:])
    raise ValueError(_SUFFIX_ERROR)


def _format_amount(amount: Fraction, suffix: str) -> str:
    if amount == 0:
        return "0"
    if suffix in _BINARY and abs(amount) >= 1024:
        return _format_binary(_ceiling(amount))
    mantissa, exponent = _reduce(amount)
    if _EXPONENT.fullmatch(suffix):
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


def _reduce(amount: Fraction) -> tuple[int, int]:
    """Return mantissa and power of ten, the power a multiple of three and as large as possible."""
    exponent = 18
    while (amount / Fraction(10) ** exponent).denominator != 1:
        exponent -= 3
    return int(amount / Fraction(10) ** exponent), exponent


def _ceiling(amount: Fraction) -> int:
    return -((-amount.numerator) // amount.denominator)
