"""How fields of expressions become attributes, and back. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from kubeproxy.kernel.netlink.codec import attr_be32, attr_str, attr_u8, be
from kubeproxy.kernel.nftables.numbers import (
    NFT_CMP_EQ,
    NFT_CMP_NEQ,
    NFT_NG_INCREMENTAL,
    NFT_NG_RANDOM,
    NFT_REG32_00,
    NFT_REG_1,
    NFT_REG_4,
)
from kubeproxy.kernel.nftables.packing import pack_value, pack_verdict
from kubeproxy.kernel.nftables.parsing import name, parse_value, parse_verdict
from kubeproxy.kernel.nftables.values import Verdict

T = TypeVar("T")


class Encoding(Struct, Generic[T], frozen=True):
    """How a field of an expression becomes an attribute, and back. None is "not of this form"."""

    pack: Callable[[int, T], bytes]
    parse: Callable[[bytes], T | None]


def _parse_register(raw: bytes) -> int:
    """The kernel dumps every fourth register under its old 16-byte name."""
    number = be(raw)
    is_old = NFT_REG_1 <= number <= NFT_REG_4
    return NFT_REG32_00 + (number - NFT_REG_1) * 4 if is_old else number


def _pack_comparison(kind: int, is_unequal: bool) -> bytes:
    return attr_be32(kind, NFT_CMP_NEQ if is_unequal else NFT_CMP_EQ)


def _parse_comparison(raw: bytes) -> bool | None:
    """There are others, such as "less than"."""
    return {NFT_CMP_EQ: False, NFT_CMP_NEQ: True}.get(be(raw))


def _pack_numgen_type(kind: int, is_in_turn: bool) -> bytes:
    return attr_be32(kind, NFT_NG_INCREMENTAL if is_in_turn else NFT_NG_RANDOM)


def _parse_numgen_type(raw: bytes) -> bool | None:
    return {NFT_NG_INCREMENTAL: True, NFT_NG_RANDOM: False}.get(be(raw))


NUMBER: Encoding[int] = Encoding(attr_be32, be)
NUMGEN_TYPE: Encoding[bool] = Encoding(_pack_numgen_type, _parse_numgen_type)
OCTET: Encoding[int] = Encoding(attr_u8, be)
COMPARISON: Encoding[bool] = Encoding(_pack_comparison, _parse_comparison)
REGISTER: Encoding[int] = Encoding(attr_be32, _parse_register)
TEXT: Encoding[str] = Encoding(attr_str, name)
VALUE: Encoding[bytes] = Encoding(pack_value, parse_value)
VERDICT: Encoding[Verdict] = Encoding(pack_verdict, parse_verdict)
