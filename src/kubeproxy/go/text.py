"""Booleans, integers and operating system errors as Go reads and prints them.

Users compare our messages with upstream's documentation and match them in scripts, so these
follow Go's rules to the letter. Every `parse_` here raises ValueError whose text is Go's error
text. The caller adds where the value came from.
"""

from __future__ import annotations

import re

from kubeproxy.go.quoting import quote

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INTEGER = re.compile(
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO]?(?:_?[0-7])+|0|[1-9](?:_?[0-9])*)"
)
_DECIMAL = re.compile(r"[0-9]+")
_ENOUGH_DIGITS = 40
"""More digits than any integer type holds. Python refuses to convert thousands of them."""


def parse_bool(text: str) -> bool:
    """Parse a truth value in any of the spellings `strconv.ParseBool` takes."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"strconv.ParseBool: parsing {quote(text)}: invalid syntax")


def format_bool(value: bool) -> str:
    """Format a truth value: `true` or `false`."""
    return "true" if value else "false"


def parse_int32(text: str) -> int:
    """Parse a 32-bit integer. `0x`, `0o`, `0b` and a plain leading `0` choose the base."""
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: invalid syntax")
    value = parse_based_integer(text)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: value out of range")
    return value


def parse_based_integer(text: str) -> int:
    """Parse an integer already known to match Go's literal syntax. A leading zero means octal."""
    digits = text.lstrip("+-")
    if re.fullmatch(r"0[0-7_]+", digits):
        digits = "0o" + digits[1:]
    plain = digits.replace("_", "")
    value = parse_digits(plain) if plain.isdigit() else int(plain, 0)
    return -value if text.startswith("-") else value


def parse_digits(text: str) -> int:
    """Parse decimal digits, of which there may be any number. Return a huge value for too many."""
    return int(text.lstrip("0")[:_ENOUGH_DIGITS] or "0")


def is_integer(text: str) -> bool:
    """Would Go read this text as an integer literal of any base?"""
    return _INTEGER.fullmatch(text) is not None


def parse_uint31(text: str) -> int:
    """Parse a decimal number that also fits into a positive int32: log verbosity."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"strconv.ParseUint: parsing {quote(text)}: invalid syntax")
    value = parse_digits(text)
    if value >= 1 << 31:
        raise ValueError(f"strconv.ParseUint: parsing {quote(text)}: value out of range")
    return value


def format_os_error(error: OSError) -> str:
    """Format the reason of a failed system call. Go's texts start with a small letter."""
    reason = error.strerror or str(error)
    return reason[:1].lower() + reason[1:]
