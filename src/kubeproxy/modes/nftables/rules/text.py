"""Rules and elements in nft's own language, for people (`kpctl render`) and for golden files.

A rule is read the way the kernel executes it: each expression either loads a register, tests one,
or acts. The text of a test contains the text of what was loaded. Pure.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from kubeproxy.facts.ids import Protocol
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.wire import Verdict
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules import expressions as exprs
from kubeproxy.modes.nftables.rules.expressions import Expr, Rule
from kubeproxy.modes.nftables.rules.pieces import REGISTER

_PROTOCOLS = {protocol.number: protocol.lower_name for protocol in Protocol}
_VERDICTS = {
    nft.NF_DROP: "drop",
    nft.NF_ACCEPT: "accept",
    nft.NFT_CONTINUE: "continue",
    nft.NFT_BREAK: "break",
    nft.NFT_JUMP: "jump",
    nft.NFT_GOTO: "goto",
    nft.NFT_RETURN: "return",
}


class Loaded(Struct, frozen=True):
    """What a register holds: its text, its kind, and the mask and xor applied to it since."""

    text: str
    kind: str
    mask: int | None = None
    xor: int = 0


def format_verdict(verdict: Verdict) -> str:
    """`goto pick-3`, `drop`"""
    word = _VERDICTS[verdict.code]
    return f"{word} {verdict.chain}" if verdict.chain else word


def format_rule(rule: Rule, layout: FamilyLayout) -> str:
    """The rule as `nft list` prints it."""
    words = _Printer(layout).words(rule.expressions)
    text = " ".join(words)
    return f'{text} comment "{rule.comment}"' if rule.comment else text


class _Printer:
    """The registers of one rule while it is read."""

    def __init__(self, layout: FamilyLayout) -> None:
        self._layout = layout
        self._ip = "ip" if layout.address_length == 4 else "ip6"
        self._held: dict[int, Loaded] = {}
        self._constants: dict[int, bytes] = {}

    def words(self, expressions: Iterable[Expr]) -> list[str]:
        return [text for expression in expressions if (text := self._step(expression))]

    def _step(self, expression: Expr) -> str:
        """Execute one expression. Return its text, empty if it only fills a register."""
        match expression:
            case exprs.Payload(register):
                self._load(register, self._payload(expression))
            case exprs.MetaLoad(register, key):
                self._load(register, _META[key])
            case exprs.Ct(register, key):
                self._load(register, _CT[key])
            case exprs.Fib(register, flags):
                side = "saddr" if flags == nft.NFTA_FIB_F_SADDR else "daddr"
                self._load(register, Loaded(f"fib {side} type", "type"))
            case exprs.Numgen(register, modulus, is_in_turn):
                kind = "inc" if is_in_turn else "random"
                self._load(register, Loaded(f"numgen {kind} mod {modulus}", "number"))
            case exprs.Hash(source, _, register, modulus, seed):
                text = f"jhash {self._held.pop(source).text} mod {modulus} seed 0x{seed:x}"
                self._load(register, Loaded(text, "number"))
            case exprs.Bitwise():
                self._bitwise(expression)
            case exprs.Immediate(register, value):
                self._constants[register] = value
            case _:
                return self._act(expression)
        return ""

    def _load(self, register: int, loaded: Loaded) -> None:
        if register == REGISTER:  # a new key begins
            self._held.clear()
        self._held[register] = loaded

    def _payload(self, load: exprs.Payload) -> Loaded:
        if load.base == nft.NFT_PAYLOAD_TRANSPORT_HEADER:
            return Loaded("th dport", "port")
        source = load.offset == self._layout.source_offset
        return Loaded(f"{self._ip} {'saddr' if source else 'daddr'}", "address")

    def _bitwise(self, step: exprs.Bitwise) -> None:
        held = self._held[step.register]
        order: Literal["big", "little"] = "big" if held.kind == "address" else sys.byteorder
        mask, xor = int.from_bytes(step.mask, order), int.from_bytes(step.xor, order)
        self._held[step.register] = Loaded(held.text, held.kind, mask, xor)

    def _act(self, expression: Expr) -> str:
        match expression:
            case exprs.ImmediateVerdict(verdict):
                return format_verdict(verdict)
            case exprs.Compare():
                return self._compare(expression)
            case exprs.MetaSet(_, register):
                return f"meta mark set {_combined(self._held[register])}"
            case exprs.Lookup():
                return self._lookup(expression)
            case exprs.Dnat(_, address, port):
                return self._dnat(address, port)
            case exprs.Masquerade():
                return "masquerade fully-random"
            case exprs.Reject():
                return "reject"
            case exprs.Dynset(name, register):
                return f"update @{name} {{ {self._held[register].text} }}"
            case _:
                return f"({type(expression).__name__.lower()})"

    def _key(self) -> str:
        return " . ".join(self._held[register].text for register in sorted(self._held))

    def _lookup(self, lookup: exprs.Lookup) -> str:
        key = self._key()
        if lookup.result is None:
            return f"{key} @{lookup.set}"
        if lookup.result == nft.NFT_REG_VERDICT:
            return f"{key} vmap @{lookup.set}"
        self._held = {lookup.result: Loaded(f"{key} map @{lookup.set}", "endpoint")}
        return ""

    def _dnat(self, address: int, port: int) -> str:
        held = self._held.get(address)
        if held is not None and held.kind == "endpoint":
            return f"dnat {self._ip} to {held.text}"
        where = str(ipaddress.ip_address(self._constants[address]))
        if self._ip == "ip6":
            where = f"[{where}]"
        return f"dnat to {where}:{int.from_bytes(self._constants[port], 'big')}"

    def _compare(self, test: exprs.Compare) -> str:
        held = self._held[test.register]
        operator = "!= " if test.is_unequal else ""
        if held.kind == "address":
            return f"{held.text} {operator}{_network(test.value, held.mask, self._layout)}"
        if held.kind == "name":
            return f"{held.text} {operator}{_interface(test.value)}"
        if held.mask is not None:
            return _bits(held)
        number = int.from_bytes(test.value, sys.byteorder)
        value = _NAMES.get(held.kind, {}).get(number, str(number))
        return f"{held.text} {operator}{value}"


_META = {
    nft.NFT_META_MARK: Loaded("meta mark", "mark"),
    nft.NFT_META_IIFNAME: Loaded("iifname", "name"),
    nft.NFT_META_L4PROTO: Loaded("meta l4proto", "protocol"),
}
_CT = {
    nft.NFT_CT_STATE: Loaded("ct state", "state"),
    nft.NFT_CT_STATUS: Loaded("ct status", "status"),
}
_NAMES: dict[str, dict[int, str]] = {
    "protocol": _PROTOCOLS,
    "type": {nft.RTN_LOCAL: "local"},
    "state": {nft.NF_CT_STATE_NEW: "new"},
    "status": {nft.IPS_DST_NAT: "dnat"},
}


def _bits(held: Loaded) -> str:
    """A test for bits: `ct state new`, `meta mark & 0x00004000 != 0x00000000`."""
    mask = held.mask or 0
    named = _NAMES.get(held.kind, {}).get(mask)
    return f"{held.text} {named}" if named else f"{held.text} & 0x{mask:08x} != 0x00000000"


def _combined(held: Loaded) -> str:
    if held.mask == 0xFFFFFFFF:
        return f"{held.text} ^ 0x{held.xor:08x}"
    return f"{held.text} | 0x{held.xor:08x}"


def _network(value: bytes, mask: int | None, layout: FamilyLayout) -> str:
    """Compared bytes as an address or network. Fewer bytes than an address has are a prefix."""
    padded = value.ljust(layout.address_length, b"\0")
    bits = layout.address_length * 8
    prefix = len(value) * 8 if mask is None else mask.bit_count()
    address = str(ipaddress.ip_address(padded))
    return address if prefix == bits else f"{address}/{prefix}"


def _interface(value: bytes) -> str:
    name = value.rstrip(b"\0").decode()
    return f'"{name}"' if len(value) == nft.IFNAMSIZ else f'"{name}*"'


def format_key(key: bytes, fields: Sequence[str], layout: FamilyLayout) -> str:
    """An element's key, made of the fields `address`, `protocol`, `port` and `index`."""
    parts = []
    position = 0
    for field in fields:
        length = layout.address_length if field == "address" else 4
        parts.append(_format_field(field, key[position : position + length]))
        position += length
    return " . ".join(parts)


def _format_field(field: str, raw: bytes) -> str:
    if field == "address":
        return str(ipaddress.ip_address(raw))
    if field == "protocol":
        return _PROTOCOLS.get(raw[0], str(raw[0]))
    if field == "port":
        return str(int.from_bytes(raw[:2], "big"))
    return str(int.from_bytes(raw, sys.byteorder))
