"""Pieces rules are built from, each named after what it reads like in nft's language. Pure.

A piece is a run of expressions; `rule` joins pieces. Sequences follow what nft 1.0.6 itself
generates, so that it prints them back as the text in the docstrings. Registers are the 4-byte
ones; a concatenation is a run of them.
"""

from __future__ import annotations

import ipaddress
import sys
from enum import StrEnum
from itertools import chain as join
from typing import TypeAlias

from kubeproxy.facts.node import DetectorKind, LocalDetector
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.wire import Verdict
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules.expressions import (
    Bitwise,
    Compare,
    Ct,
    Dnat,
    Dynset,
    Expr,
    Fib,
    Hash,
    Immediate,
    ImmediateVerdict,
    Lookup,
    Masquerade,
    MetaLoad,
    MetaSet,
    Numgen,
    Payload,
    Reject,
    Rule,
)

REGISTER = nft.NFT_REG32_00
"""Where every key begins."""

_DESTINATION_PORT_OFFSET, _PORT_LENGTH = 2, 2
_WORDS_OF_OLD_REGISTER = 4

SEED = 0x6B756265
"""Of every hash: fixed, so that all nodes choose alike, and choose the same after a restart."""

Piece: TypeAlias = tuple[Expr, ...]


class Draw(StrEnum):
    """How a number is chosen, with the word for it in names of class chains."""

    PICK = "pick"  # at random
    TURN = "turn"  # one after the other
    HASH = "hash"  # by the client's address


def rule(*pieces: Piece, comment: str = "") -> Rule:
    return Rule(tuple(join.from_iterable(pieces)), comment)


def host32(number: int) -> bytes:
    """A mark, state or type as registers hold it: in host order."""
    return number.to_bytes(4, sys.byteorder)


# ---- verdicts and actions --------------------------------------------------------------------


def verdict(decided: Verdict) -> Piece:
    """`drop`, `return`"""
    return (ImmediateVerdict(decided),)


def jump(chain: str) -> Piece:
    """`jump CHAIN`"""
    return verdict(Verdict(nft.NFT_JUMP, chain))


def goto(chain: str) -> Piece:
    """`goto CHAIN`"""
    return verdict(Verdict(nft.NFT_GOTO, chain))


def masquerade() -> Piece:
    """`masquerade fully-random`"""
    return (Masquerade(),)


def reject(layout: FamilyLayout) -> Piece:
    """`reject`: port unreachable, also for TCP."""
    return (Reject(layout.reject_code),)


def mark_or(mark: int) -> Piece:
    """`meta mark set meta mark | MARK`"""
    return _mark_set(~mark & 0xFFFFFFFF, mark)


def mark_xor(mark: int) -> Piece:
    """`meta mark set meta mark ^ MARK`"""
    return _mark_set(0xFFFFFFFF, mark)


def _mark_set(mask: int, xor: int) -> Piece:
    return (
        MetaLoad(REGISTER, nft.NFT_META_MARK),
        Bitwise(REGISTER, host32(mask), host32(xor)),
        MetaSet(nft.NFT_META_MARK, REGISTER),
    )


# ---- tests -----------------------------------------------------------------------------------


def _has_bits(load: Expr, bits: int) -> Piece:
    zero = host32(0)
    return (load, Bitwise(REGISTER, host32(bits), zero), Compare(REGISTER, zero, is_unequal=True))


def state_new() -> Piece:
    """`ct state new`"""
    return _has_bits(Ct(REGISTER, nft.NFT_CT_STATE), nft.NF_CT_STATE_NEW)


def status_dnat() -> Piece:
    """`ct status dnat`"""
    return _has_bits(Ct(REGISTER, nft.NFT_CT_STATUS), nft.IPS_DST_NAT)


def mark_has(mark: int) -> Piece:
    """`meta mark & MARK != 0`"""
    return _has_bits(MetaLoad(REGISTER, nft.NFT_META_MARK), mark)


def is_source_local() -> Piece:
    """`fib saddr type local`"""
    return _is_local(nft.NFTA_FIB_F_SADDR)


def is_destination_local() -> Piece:
    """`fib daddr type local`"""
    return _is_local(nft.NFTA_FIB_F_DADDR)


def _is_local(flags: int) -> Piece:
    return (Fib(REGISTER, flags), Compare(REGISTER, host32(nft.RTN_LOCAL)))


def in_network(layout: FamilyLayout, offset: int, cidr: str, *, negated: bool = False) -> Piece:
    """`ip saddr 10.0.0.0/8`. Whole bytes are compared without a mask, as nft does."""
    network = ipaddress.ip_network(cidr)
    packed, prefix = network.network_address.packed, network.prefixlen
    if prefix and prefix % 8 == 0:
        length = prefix // 8
        load = Payload(REGISTER, nft.NFT_PAYLOAD_NETWORK_HEADER, offset, length)
        return (load, Compare(REGISTER, packed[:length], negated))
    load = Payload(REGISTER, nft.NFT_PAYLOAD_NETWORK_HEADER, offset, layout.address_length)
    mask = network.netmask.packed
    cut = Bitwise(REGISTER, mask, b"\0" * len(mask))
    return (load, cut, Compare(REGISTER, packed, negated))


def not_loopback(layout: FamilyLayout) -> Piece:
    """`ip daddr != 127.0.0.0/8`, `ip6 daddr != ::1`"""
    loopback = layout.family.loopback_cidr
    return in_network(layout, layout.destination_offset, loopback, negated=True)


def from_local_pod(
    layout: FamilyLayout, detector: LocalDetector, *, negated: bool = False
) -> Piece:
    """The local traffic detector's test, or its opposite."""
    if detector.kind is DetectorKind.CIDR:
        return in_network(layout, layout.source_offset, detector.value, negated=negated)
    name = detector.value.encode()
    if detector.kind is DetectorKind.BRIDGE:
        # The whole name is compared with its padding; a shorter comparison is a prefix.
        name = name.ljust(nft.IFNAMSIZ, b"\0")
    return (MetaLoad(REGISTER, nft.NFT_META_IIFNAME), Compare(REGISTER, name, negated))


def drawn_is(layout: FamilyLayout, draw: Draw, modulus: int, number: int = 0) -> Piece:
    """`numgen random mod N 0`"""
    return (*drawn(layout, draw, REGISTER, modulus), Compare(REGISTER, host32(number)))


def drawn(layout: FamilyLayout, draw: Draw, register: int, modulus: int) -> Piece:
    """`numgen random mod N`, `numgen inc mod N`, `jhash ip saddr mod N seed 0x6b756265`"""
    if draw is not Draw.HASH:
        return (Numgen(register, modulus, is_in_turn=draw is Draw.TURN),)
    length, hashed = layout.address_length, register + 1
    return (*source(layout, hashed), Hash(hashed, length, register, modulus, SEED))


# ---- keys and look-ups -----------------------------------------------------------------------


def source(layout: FamilyLayout, register: int = REGISTER) -> Piece:
    """`ip saddr`"""
    base, offset = nft.NFT_PAYLOAD_NETWORK_HEADER, layout.source_offset
    return (Payload(register, base, offset, layout.address_length),)


def destination(layout: FamilyLayout, register: int = REGISTER) -> Piece:
    """`ip daddr`"""
    base, offset = nft.NFT_PAYLOAD_NETWORK_HEADER, layout.destination_offset
    return (Payload(register, base, offset, layout.address_length),)


def _protocol_and_port(register: int) -> Piece:
    """`meta l4proto . th dport`"""
    base = nft.NFT_PAYLOAD_TRANSPORT_HEADER
    port = Payload(register + 1, base, _DESTINATION_PORT_OFFSET, _PORT_LENGTH)
    return (MetaLoad(register, nft.NFT_META_L4PROTO), port)


def service_key(layout: FamilyLayout) -> Piece:
    """`ip daddr . meta l4proto . th dport`"""
    return destination(layout) + _protocol_and_port(REGISTER + layout.words)


def node_port_key() -> Piece:
    """`meta l4proto . th dport`"""
    return _protocol_and_port(REGISTER)


def hairpin_key(layout: FamilyLayout) -> Piece:
    """`ip saddr . ip daddr . meta l4proto . th dport`"""
    second = REGISTER + layout.words
    tail = _protocol_and_port(second + layout.words)
    return source(layout) + destination(layout, second) + tail


def in_set(name: str) -> Piece:
    """`@set`"""
    return (Lookup(name, REGISTER),)


def verdict_map(name: str) -> Piece:
    """`vmap @map`"""
    return (Lookup(name, REGISTER, nft.NFT_REG_VERDICT),)


def pick(
    layout: FamilyLayout, count: int, map_name: str, *, by_node_port: bool, draw: Draw
) -> Piece:
    """`dnat ip to KEY . numgen random mod N map @endpoints`"""
    key = node_port_key() if by_node_port else service_key(layout)
    words = 2 if by_node_port else layout.words + 2
    return (
        *key,
        *drawn(layout, draw, REGISTER + words, count),
        Lookup(map_name, REGISTER, REGISTER),
        Dnat(layout.number, REGISTER, REGISTER + layout.words),
    )


def remember_source(layout: FamilyLayout, name: str) -> Piece:
    """`update @affinity { ip saddr }`"""
    return (*source(layout), Dynset(name, REGISTER))


def dnat_to(layout: FamilyLayout, protocol: int, address: bytes, port: int) -> Piece:
    """`meta l4proto tcp dnat to 10.0.0.1:80`. Constants have 16-byte registers, as nft has it."""
    second = REGISTER + _WORDS_OF_OLD_REGISTER
    return (
        MetaLoad(REGISTER, nft.NFT_META_L4PROTO),
        Compare(REGISTER, bytes((protocol,))),
        Immediate(REGISTER, address),
        Immediate(second, port.to_bytes(2, "big")),
        Dnat(layout.number, REGISTER, second),
    )
