"""Rules and elements in nft's own language, for people (`kpctl render`) and for golden files.

A rule is read the way the kernel runs it: each expression either loads a register, tests one, or
does something; the text of a test is the text of what was loaded. Pure.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from kubeproxy.modes.nftables import items as types
from kubeproxy.modes.nftables.items import Expr, Rule, Verdict
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules import pieces as rules

PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
_STATES = {0x08: "new"}
_STATUSES = {0x20: "dnat"}
_VERDICTS = {0: "drop", 1: "accept", -1: "continue", -2: "break", -5: "return"}


class Loaded(Struct, frozen=True):
    """What a register holds: its text, its kind, and what was done to it since."""

    text: str
    kind: str
    mask: int | None = None
    xor: int = 0


def format_verdict(verdict: Verdict) -> str:
    """`goto pick-3`, `drop`"""
    if verdict.chain:
        word = "jump" if verdict.code == types.JUMP_CODE else "goto"
        return f"{word} {verdict.chain}"
    return _VERDICTS[verdict.code]


def format_rule(rule: Rule, layout: FamilyLayout) -> str:
    """The rule as `nft list` prints it."""
    words = _Printer(layout).words(rule.expressions)
    text = " ".join(words)
    return f'{text} comment "{rule.comment}"' if rule.comment else text


class _Printer:
    """One rule's registers while it is read."""

    def __init__(self, layout: FamilyLayout) -> None:
        self._layout = layout
        self._ip = "ip" if layout.address_length == 4 else "ip6"
        self._held: dict[int, Loaded] = {}
        self._constants: dict[int, bytes] = {}

    def words(self, expressions: Iterable[Expr]) -> list[str]:
        found: list[str] = []
        for expression in expressions:
            self._forget_covered(expression)
            text = self._step(expression)
            if text:
                found.append(text)
        return found

    def _forget_covered(self, expression: Expr) -> None:
        """A new load at the first register begins a new key."""
        loads = (types.Payload, types.MetaLoad, types.Ct, types.Fib, types.Numgen)
        if isinstance(expression, loads) and expression.register == rules.REGISTER:
            self._held.clear()

    def _step(self, expression: Expr) -> str:
        match expression:
            case types.Payload():
                self._held[expression.register] = self._payload(expression)
            case types.MetaLoad(register, key):
                self._held[register] = _META[key]
            case types.Ct(register, key):
                self._held[register] = _CT[key]
            case types.Fib(register, flags):
                side = "saddr" if flags == rules.FIB_SOURCE else "daddr"
                self._held[register] = Loaded(f"fib {side} type", "type")
            case types.Numgen(register, modulus):
                self._held[register] = Loaded(f"numgen random mod {modulus}", "number")
            case types.Bitwise():
                self._bitwise(expression)
            case types.Immediate(register, value):
                self._constants[register] = value
            case _:
                return self._act(expression)
        return ""

    def _payload(self, load: types.Payload) -> Loaded:
        if load.base == rules.TRANSPORT:
            return Loaded("th dport", "port")
        source = load.offset == self._layout.source_offset
        return Loaded(f"{self._ip} {'saddr' if source else 'daddr'}", "address")

    def _bitwise(self, step: types.Bitwise) -> None:
        held = self._held[step.register]
        order: Literal["big", "little"] = "big" if held.kind == "address" else sys.byteorder
        mask, xor = int.from_bytes(step.mask, order), int.from_bytes(step.xor, order)
        self._held[step.register] = Loaded(held.text, held.kind, mask, xor)

    def _act(self, expression: Expr) -> str:
        match expression:
            case types.Decide(verdict):
                return format_verdict(verdict)
            case types.Compare():
                return self._compare(expression)
            case types.MetaSet(_, register):
                return f"meta mark set {_combined(self._held[register])}"
            case types.Lookup():
                return self._lookup(expression)
            case types.Dnat(_, address, port):
                return self._dnat(address, port)
            case types.Masquerade():
                return "masquerade fully-random"
            case types.Reject():
                return "reject"
            case types.Dynset(name, register):
                return f"update @{name} {{ {self._held[register].text} }}"
            case _:
                return f"({type(expression).__name__.lower()})"

    def _key(self) -> str:
        return " . ".join(self._held[register].text for register in sorted(self._held))

    def _lookup(self, lookup: types.Lookup) -> str:
        key = self._key()
        if lookup.result is None:
            return f"{key} @{lookup.set}"
        if lookup.result == 0:
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

    def _compare(self, test: types.Compare) -> str:
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
    rules.META_MARK: Loaded("meta mark", "mark"),
    rules.META_IIFNAME: Loaded("iifname", "name"),
    rules.META_L4PROTO: Loaded("meta l4proto", "protocol"),
}
_CT = {
    rules.CT_STATE: Loaded("ct state", "state"),
    rules.CT_STATUS: Loaded("ct status", "status"),
}
_NAMES: dict[str, dict[int, str]] = {
    "protocol": PROTOCOLS,
    "type": {2: "local"},
    "state": _STATES,
    "status": _STATUSES,
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
    """Compared bytes as an address or network; fewer bytes than an address are a prefix."""
    padded = value.ljust(layout.address_length, b"\0")
    bits = layout.address_length * 8
    prefix = len(value) * 8 if mask is None else mask.bit_count()
    address = str(ipaddress.ip_address(padded))
    return address if prefix == bits else f"{address}/{prefix}"


def _interface(value: bytes) -> str:
    name = value.rstrip(b"\0").decode()
    return f'"{name}"' if len(value) == 16 else f'"{name}*"'


def format_key(key: bytes, fields: Sequence[str], layout: FamilyLayout) -> str:
    """An element's key; fields are `address`, `protocol`, `port` and `index`."""
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
        return PROTOCOLS.get(raw[0], str(raw[0]))
    if field == "port":
        return str(int.from_bytes(raw[:2], "big"))
    return f"0x{int.from_bytes(raw, sys.byteorder):08x}"
