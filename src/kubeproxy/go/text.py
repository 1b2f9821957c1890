"""Scalars as Go reads and prints them.

Users compare our messages with upstream's documentation and match them in scripts, so numbers,
booleans and addresses follow Go's rules to the letter. Every `parse_` here raises ValueError
whose text is Go's error text; the caller adds where the value came from.
"""

from __future__ import annotations

import math
import re
import struct

from kubeproxy.go.quoting import quote

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INTEGER = re.compile(
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO]?(?:_?[0-7])+|0|[1-9](?:_?[0-9])*)"
)
_DECIMAL = re.compile(r"[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)")


def parse_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"strconv.ParseBool: parsing {quote(text)}: invalid syntax")


def parse_int32(text: str) -> int:
    """A 32-bit integer; `0x`, `0o`, `0b` and a plain leading `0` choose the base."""
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: invalid syntax")
    value = parse_based_integer(text)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: value out of range")
    return value


def parse_based_integer(text: str) -> int:
    """An integer already known to match Go's literal syntax; a leading zero means octal."""
    digits = text.lstrip("+-")
    if re.fullmatch(r"0[0-7_]+", digits):
        digits = "0o" + digits[1:]
    value = int(digits.replace("_", ""), 0)
    return -value if text.startswith("-") else value


def is_integer(text: str) -> bool:
    """Would Go read this text as an integer literal of any base?"""
    return _INTEGER.fullmatch(text) is not None


def parse_uint31(text: str) -> int:
    """A decimal number that also fits into a positive int32: log verbosity."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"strconv.ParseUint: parsing {quote(text)}: invalid syntax")
    if int(text) >= 1 << 31:
        raise ValueError(f"strconv.ParseUint: parsing {quote(text)}: value out of range")
    return int(text)


def parse_float32(text: str) -> float:
    if not _FLOAT.fullmatch(text.lower()):
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
    """The shortest decimal that reads back as the value; whole numbers without a point."""
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return repr(value)


def split_host_port(text: str) -> tuple[str, str]:
    """Host and port of `host:port` or `[host]:port`."""
    if not text:
        raise ValueError("missing port in address")
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"address {text}: missing port in address")
    if text.startswith("["):
        return _split_bracketed(text, port)
    if ":" in host:
        raise ValueError(f"address {text}: too many colons in address")
    for bracket in "[]":
        if bracket in text:
            raise ValueError(f"address {text}: unexpected '{bracket}' in address")
    return host, port


def _split_bracketed(text: str, port: str) -> tuple[str, str]:
    end = text.find("]")
    if end < 0:
        raise ValueError(f"address {text}: missing ']' in address")
    if end + 1 == len(text):
        raise ValueError(f"address {text}: missing port in address")
    if text[end + 1] != ":":
        raise ValueError(f"address {text}: missing port in address")
    if end + 1 != text.rfind(":"):
        raise ValueError(f"address {text}: too many colons in address")
    host = text[1:end]
    if "[" in host or "[" in port:
        raise ValueError(f"address {text}: unexpected '[' in address")
    if "]" in port:
        raise ValueError(f"address {text}: unexpected ']' in address")
    return host, port
