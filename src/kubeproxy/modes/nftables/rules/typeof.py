"""Types of the pool maps as nft keeps them, so that what nft prints of them can be loaded. Pure.

The kernel stores the types of a map as numbers that only nft understands, and nft has no number
for the index of a pool: a random number is an `integer`, which has no length. Declared with such a
type the map could be printed, but no rule that draws an index would fit it, and `nft -f` would
refuse the printout and everything else in that file. nft's own way out is `typeof`: the user data
of a set names, field by field, the expressions its types are taken from. A map without it, such as
nft makes when it loads JSON, works, but nft cannot print it; so it counts as one of another type.

The layout was read back from maps that nft 1.0.6 and 1.1.7 declare, which write the same bytes: a
list of (kind, length, value), nested, with numbers of four bytes in host order. Numbers of
expressions and headers are nft's (its expression.h and proto.h), those of kinds are libnftnl's
(udata.h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from msgspec import Struct

from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.nftables.items import SetSpec

LONGEST_POOL = 1 << 16
"""No index is as big as this."""

# enum expr_types
_EXPR_PAYLOAD, _EXPR_META, _EXPR_CONCAT, _EXPR_NUMGEN = 7, 9, 13, 23
# enum proto_desc_id, and in each header the place of a field
_PROTO_TH, _PROTO_IP, _PROTO_IP6 = 11, 12, 13
_IP_DADDR, _IP6_DADDR, _TH_DPORT = 12, 9, 2

_TYPEOF_EXPR, _TYPEOF_DATA = 0, 1


class Selector(Struct, frozen=True):
    """An expression as a type: its text in nft's language, its kind, and its packed parameters."""

    text: str
    kind: int
    parameters: bytes


def _number(kind: int, value: int) -> bytes:
    return struct.pack("=BBI", kind, 4, value)


def _nest(kind: int, content: bytes) -> bytes:
    return bytes((kind, len(content))) + content


def _numbers(*values: int) -> bytes:
    return b"".join(_number(kind, value) for kind, value in enumerate(values))


_SELECTORS: Mapping[int, Selector] = {
    nft.TYPE_IPADDR: Selector("ip daddr", _EXPR_PAYLOAD, _numbers(_PROTO_IP, _IP_DADDR)),
    nft.TYPE_IP6ADDR: Selector("ip6 daddr", _EXPR_PAYLOAD, _numbers(_PROTO_IP6, _IP6_DADDR)),
    nft.TYPE_INET_PROTOCOL: Selector("meta l4proto", _EXPR_META, _numbers(nft.NFT_META_L4PROTO)),
    nft.TYPE_INET_SERVICE: Selector("th dport", _EXPR_PAYLOAD, _numbers(_PROTO_TH, _TH_DPORT)),
    nft.TYPE_MARK: Selector(
        f"numgen random mod {LONGEST_POOL}",
        _EXPR_NUMGEN,
        _numbers(nft.NFT_NG_RANDOM, LONGEST_POOL, 0),
    ),
}
"""What a field of each type is taken from. The index is declared as a mark (see `scaffold`)."""


def types_of(packed: int) -> list[int]:
    """The types of a concatenation's fields, first one first."""
    found: list[int] = []
    while packed:
        found.append(packed & (1 << nft.TYPE_BITS) - 1)
        packed >>= nft.TYPE_BITS
    return found[::-1]


def canonical_type(packed: int) -> int:
    """The type of a key as we declare it: nft, which loads its printout, calls an index integer."""
    last = (1 << nft.TYPE_BITS) - 1
    return packed & ~last | nft.TYPE_MARK if packed & last == nft.TYPE_INTEGER else packed


def has_index(spec: SetSpec) -> bool:
    """Is it the declaration of a pool map?"""
    return types_of(spec.key_type)[-1:] == [nft.TYPE_MARK]


def typeof_text(packed: int) -> str:
    """`ip daddr . meta l4proto . th dport`"""
    return " . ".join(selector.text for selector in _selectors(packed))


def typeof_userdata(key_type: int, data_type: int) -> bytes:
    """User data that names the types of a pool map."""
    key = _nest(nft.UDATA_SET_KEY_TYPEOF, _concatenation(key_type))
    return key + _nest(nft.UDATA_SET_DATA_TYPEOF, _concatenation(data_type))


def _selectors(packed: int) -> Iterable[Selector]:
    return (_SELECTORS[number] for number in types_of(packed))


def _concatenation(packed: int) -> bytes:
    fields = b"".join(
        _nest(position, _expression(selector.kind, selector.parameters))
        for position, selector in enumerate(_selectors(packed))
    )
    return _expression(_EXPR_CONCAT, fields)


def _expression(kind: int, parameters: bytes) -> bytes:
    return _number(_TYPEOF_EXPR, kind) + _nest(_TYPEOF_DATA, parameters)
