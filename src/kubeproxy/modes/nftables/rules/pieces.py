"""Pieces rules are built from, each named after what it reads like in nft's language. Pure.

Sequences follow what nft 1.0.6 itself generates, so that it prints them back as the text in the
docstrings. Registers are the 4-byte ones, from 8; a concatenation is a run of them.
"""

from __future__ import annotations

import ipaddress
import sys

from kubeproxy.facts.node import DetectorKind, LocalDetector
from kubeproxy.modes.nftables.items import (
    Bitwise,
    Compare,
    Ct,
    Decide,
    Dnat,
    Dynset,
    Expr,
    Fib,
    Immediate,
    Lookup,
    Masquerade,
    MetaLoad,
    MetaSet,
    Numgen,
    Payload,
    Reject,
    Rule,
    Verdict,
    goto,
    jump,
)
from kubeproxy.modes.nftables.names import FamilyLayout

REGISTER = 8
NETWORK, TRANSPORT = 1, 2
META_MARK, META_IIFNAME, META_L4PROTO = 3, 6, 16
CT_STATE, CT_STATUS = 0, 2
FIB_SOURCE, FIB_DESTINATION = 1, 2
_STATE_NEW = 0x08
_STATUS_DNAT = 0x20
_TYPE_LOCAL = 2
_INTERFACE_LENGTH = 16

Exprs = tuple[Expr, ...]


def rule(*parts: Exprs | Expr, comment: str = "") -> Rule:
    """A rule of pieces and single expressions."""
    flat: list[Expr] = []
    for part in parts:
        if isinstance(part, tuple):
            flat.extend(part)
        else:
            flat.append(part)
    return Rule(tuple(flat), comment)


def host32(number: int) -> bytes:
    """Marks, states and types are compared in host order."""
    return number.to_bytes(4, sys.byteorder)


def jumps(chain: str) -> Decide:
    return Decide(jump(chain))


def goes(chain: str) -> Decide:
    return Decide(goto(chain))


def decides(verdict: Verdict) -> Decide:
    return Decide(verdict)


def _has_bits(load: Expr, bits: int) -> Exprs:
    zero = host32(0)
    return (load, Bitwise(REGISTER, host32(bits), zero), Compare(REGISTER, zero, True))


def state_new() -> Exprs:
    """`ct state new`"""
    return _has_bits(Ct(REGISTER, CT_STATE), _STATE_NEW)


def status_dnat() -> Exprs:
    """`ct status dnat`"""
    return _has_bits(Ct(REGISTER, CT_STATUS), _STATUS_DNAT)


def mark_has(mark: int) -> Exprs:
    """`meta mark & MARK != 0`"""
    return _has_bits(MetaLoad(REGISTER, META_MARK), mark)


def mark_or(mark: int) -> Exprs:
    """`meta mark set meta mark | MARK`"""
    return _mark_set(~mark & 0xFFFFFFFF, mark)


def mark_xor(mark: int) -> Exprs:
    """`meta mark set meta mark ^ MARK`"""
    return _mark_set(0xFFFFFFFF, mark)


def _mark_set(mask: int, xor: int) -> Exprs:
    return (
        MetaLoad(REGISTER, META_MARK),
        Bitwise(REGISTER, host32(mask), host32(xor)),
        MetaSet(META_MARK, REGISTER),
    )


def masquerade() -> Masquerade:
    """`masquerade fully-random`"""
    return Masquerade()


def reject(layout: FamilyLayout) -> Reject:
    """`reject`: port unreachable, also for TCP."""
    return Reject(layout.reject_code)


def source(layout: FamilyLayout, register: int = REGISTER) -> Payload:
    """`ip saddr`"""
    return Payload(register, NETWORK, layout.source_offset, layout.address_length)


def destination(layout: FamilyLayout, register: int = REGISTER) -> Payload:
    """`ip daddr`"""
    return Payload(register, NETWORK, layout.destination_offset, layout.address_length)


def _protocol_and_port(register: int) -> Exprs:
    """`meta l4proto . th dport`"""
    return (MetaLoad(register, META_L4PROTO), Payload(register + 1, TRANSPORT, 2, 2))


def service_key(layout: FamilyLayout) -> Exprs:
    """`ip daddr . meta l4proto . th dport`"""
    return (destination(layout), *_protocol_and_port(REGISTER + layout.words))


def node_port_key() -> Exprs:
    """`meta l4proto . th dport`"""
    return _protocol_and_port(REGISTER)


def hairpin_key(layout: FamilyLayout) -> Exprs:
    """`ip saddr . ip daddr . meta l4proto . th dport`"""
    second = REGISTER + layout.words
    tail = _protocol_and_port(second + layout.words)
    return (source(layout), destination(layout, second), *tail)


def in_set(name: str) -> Lookup:
    """`@set`"""
    return Lookup(name, REGISTER)


def verdict_map(name: str) -> Lookup:
    """`vmap @map`"""
    return Lookup(name, REGISTER, 0)


def is_local(flags: int) -> Exprs:
    """`fib saddr type local`, `fib daddr type local`"""
    return (Fib(REGISTER, flags), Compare(REGISTER, host32(_TYPE_LOCAL)))


def in_network(layout: FamilyLayout, offset: int, cidr: str, *, negated: bool = False) -> Exprs:
    """`ip saddr 10.0.0.0/8` and the like; whole bytes are compared without a mask, as nft does."""
    network = ipaddress.ip_network(cidr)
    packed, prefix = network.network_address.packed, network.prefixlen
    if prefix and prefix % 8 == 0:
        length = prefix // 8
        load = Payload(REGISTER, NETWORK, offset, length)
        return (load, Compare(REGISTER, packed[:length], negated))
    load = Payload(REGISTER, NETWORK, offset, layout.address_length)
    mask = network.netmask.packed
    cut = Bitwise(REGISTER, mask, b"\0" * len(mask))
    return (load, cut, Compare(REGISTER, packed, negated))


def not_loopback(layout: FamilyLayout) -> Exprs:
    """`ip daddr != 127.0.0.0/8`, `ip6 daddr != ::1`"""
    return in_network(layout, layout.destination_offset, layout.loopback, negated=True)


def from_local_pod(
    layout: FamilyLayout, detector: LocalDetector, *, negated: bool = False
) -> Exprs:
    """The local traffic detector's test, or its opposite."""
    if detector.kind is DetectorKind.CIDR:
        return in_network(layout, layout.source_offset, detector.value, negated=negated)
    name = detector.value.encode()
    if detector.kind is DetectorKind.BRIDGE:
        name = name.ljust(_INTERFACE_LENGTH, b"\0")
    return (MetaLoad(REGISTER, META_IIFNAME), Compare(REGISTER, name, negated))


def random_is_zero(modulus: int) -> Exprs:
    """`numgen random mod N 0`"""
    return (Numgen(REGISTER, modulus), Compare(REGISTER, host32(0)))


def pick(layout: FamilyLayout, key: Exprs, words: int, count: int, map_name: str) -> Exprs:
    """`dnat ip to KEY . numgen random mod N map @endpoints`"""
    return (
        *key,
        Numgen(REGISTER + words, count),
        Lookup(map_name, REGISTER, REGISTER),
        Dnat(layout.number, REGISTER, REGISTER + layout.words),
    )


def remember_source(layout: FamilyLayout, name: str) -> Exprs:
    """`update @affinity { ip saddr }`"""
    return (source(layout), Dynset(name, REGISTER))


def dnat_to(layout: FamilyLayout, protocol: int, address: bytes, port: int) -> Exprs:
    """`meta l4proto tcp dnat to 10.0.0.1:80`"""
    second = REGISTER + layout.words
    return (
        MetaLoad(REGISTER, META_L4PROTO),
        Compare(REGISTER, bytes((protocol,))),
        Immediate(REGISTER, address),
        Immediate(second, port.to_bytes(2, "big")),
        Dnat(layout.number, REGISTER, second),
    )
