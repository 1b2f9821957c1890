"""Follows a packet through the items of the nftables mode, without a kernel.

It executes the expressions as the kernel would: registers, sets, verdicts, hooks by priority. The
items are those that are wanted, or those read from the kernel. Pure.
"""

from __future__ import annotations

import ipaddress
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from kpctl.trace.packets import Arrival, End, Step, StepKind, Tracer, Untraceable, Way
from kubeproxy.facts.address import is_loopback, join_host_port, pack_address
from kubeproxy.facts.node import NodeFacts
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.wire import Verdict
from kubeproxy.modes.base import AnyItem
from kubeproxy.modes.nftables.describe import HOOKS, fields_of
from kubeproxy.modes.nftables.items import (
    TABLE,
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Item,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
    Table,
    Value,
)
from kubeproxy.modes.nftables.names import TABLE_NAME, layout_of
from kubeproxy.modes.nftables.rules import expressions as exprs
from kubeproxy.modes.nftables.rules.expressions import Expr
from kubeproxy.modes.nftables.rules.pieces import host32
from kubeproxy.modes.nftables.rules.text import format_key, format_verdict

_DESTINATION_PORT = (nft.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)
_PREROUTING, _INPUT, _FORWARD = nft.NF_INET_PRE_ROUTING, nft.NF_INET_LOCAL_IN, nft.NF_INET_FORWARD
_OUTPUT, _POSTROUTING = nft.NF_INET_LOCAL_OUT, nft.NF_INET_POST_ROUTING


class Lot(Struct, frozen=True):
    """A register whose value is a number below `modulus`, not yet drawn.

    A hash is taken for a number that is drawn once for a client: each client has another one.
    """

    modulus: int
    is_hash: bool = False


class State(Struct, frozen=True):
    """A packet on its way."""

    arrival: Arrival
    destination: bytes
    port: int
    mark: int = 0
    is_dnat: bool = False
    is_masqueraded: bool = False
    weight: Fraction = Fraction(1)
    steps: tuple[Step, ...] = ()
    missed: int = 0
    """With how many numbers the hash of the client has been compared in vain."""

    def noting(
        self, kind: StepKind, name: str, text: str = "", item: AnyItem | None = None
    ) -> State:
        return replace(self, steps=(*self.steps, Step(kind, name, text, item)))


class Outcome(Struct, frozen=True):
    """How a hook left a packet."""

    end: End
    state: State


Registers = dict[int, bytes | Lot]
Executed = tuple[Registers, State, Verdict | End | None]
"""Registers and packet after an expression, with a verdict or an end if the rule is over."""


class ItemTracer(Tracer):
    """Traces packets of one node and one family through the items a sink holds or wants."""

    def __init__(
        self, items: Mapping[Item, Value], node: NodeFacts, clients: Mapping[str, set[bytes]] = {}
    ) -> None:
        self._items = items
        self._layout = layout_of(node.family)
        self._local = {pack_address(address) for address in node.addresses}
        self._clients = clients
        """Members of affinity sets, which packets fill and so are no items."""

    def ways(self, arrival: Arrival) -> Sequence[Way]:
        state = State(arrival, pack_address(arrival.destination), arrival.port)
        state = state.noting(StepKind.MISS, f"table {TABLE_NAME}", item=TABLE)
        first = _OUTPUT if arrival.is_from_node else _PREROUTING
        return [_way(end) for begun in self._hook(first, state) for end in self._second(begun)]

    def _second(self, begun: Outcome) -> Iterator[Outcome]:
        """After the first hook: the packet is for this host, or leaves it."""
        state = begun.state
        if begun.end is not End.ACCEPTED:
            yield begun
            return
        path = [_POSTROUTING]
        if self._is_local(state.destination):
            path = [_POSTROUTING, _INPUT] if state.arrival.is_from_node else [_INPUT]
        elif not state.arrival.is_from_node:
            path = [_FORWARD, _POSTROUTING]
        yield from self._hooks(path, begun)

    def _hooks(self, path: list[int], begun: Outcome) -> Iterator[Outcome]:
        if not path or begun.end is not End.ACCEPTED:
            yield begun
            return
        for outcome in self._hook(path[0], begun.state):
            yield from self._hooks(path[1:], outcome)

    def _hook(self, number: int, state: State) -> Iterator[Outcome]:
        """All base chains of a hook, by priority."""
        yield from self._base_chains(self._base_chain_names.get(number, []), state)

    @cached_property
    def _base_chain_names(self) -> Mapping[int, list[str]]:
        """Base chains by hook and priority. Those of a dormant table are attached to none."""
        table = self._items.get(TABLE)
        if isinstance(table, Table) and table.is_dormant:
            return {}
        hooks = [
            (value.hook, item.name)
            for item, value in self._items.items()
            if isinstance(item, ChainItem) and isinstance(value, Chain) and value.hook is not None
        ]
        found: dict[int, list[str]] = {}
        for hook, name in sorted(hooks, key=lambda pair: pair[0].priority):
            found.setdefault(hook.number, []).append(name)
        return found

    def _base_chains(self, chains: list[str], state: State) -> Iterator[Outcome]:
        if not chains:
            yield Outcome(End.ACCEPTED, state)
            return
        for end, after in self._chain(chains[0], state, StepKind.HOOK):
            if end in (End.FELL_OUT, End.ACCEPTED):
                yield from self._base_chains(chains[1:], after)
            else:
                yield Outcome(end, after)

    # ---- chains and rules --------------------------------------------------------------------

    def _chain(
        self, name: str, state: State, how: StepKind = StepKind.ENTER
    ) -> Iterator[tuple[End, State]]:
        chain = self._items.get(ChainItem(name))
        if not isinstance(chain, Chain):
            raise Untraceable(f"a rule goes to chain {name}, which does not exist")
        text = HOOKS[chain.hook.number] if chain.hook else ""
        entered = state.noting(how, name, text, ChainItem(name))
        for end, after in self._rules(chain, 0, entered):
            yield end, after.noting(StepKind.LEAVE, name) if end is End.FELL_OUT else after

    def _rules(self, chain: Chain, index: int, state: State) -> Iterator[tuple[End, State]]:
        if index == len(chain.rules):
            yield End.FELL_OUT, state
            return
        for verdict, after in self._rule(chain.rules[index].expressions, 0, {}, state):
            if verdict is None:
                yield from self._rules(chain, index + 1, after)
            elif isinstance(verdict, End):
                yield verdict, after
            else:
                yield from self._verdict(verdict, chain, index, after)

    def _verdict(
        self, verdict: Verdict, chain: Chain, index: int, state: State
    ) -> Iterator[tuple[End, State]]:
        if verdict.code == nft.NFT_GOTO:
            yield from self._chain(verdict.chain, state)
        elif verdict.code == nft.NFT_JUMP:
            for end, after in self._chain(verdict.chain, state):
                if end is End.FELL_OUT:
                    yield from self._rules(chain, index + 1, after)
                else:
                    yield end, after
        elif verdict == nft.RETURN:
            yield End.FELL_OUT, state
        else:
            if verdict != nft.DROP:
                raise Untraceable(f"a rule ends with {format_verdict(verdict)}")
            yield End.DROPPED, state.noting(StepKind.DO, "drop")

    def _rule(
        self, expressions: tuple[Expr, ...], index: int, registers: Registers, state: State
    ) -> Iterator[tuple[Verdict | End | None, State]]:
        if index == len(expressions):
            yield None, state
            return
        for next_registers, after, verdict in self._step(expressions[index], registers, state):
            if verdict is not None:
                yield verdict, after
            elif next_registers is _BREAK:
                yield None, after
            else:
                yield from self._rule(expressions, index + 1, next_registers, after)

    # ---- expressions -------------------------------------------------------------------------

    def _step(self, expression: Expr, registers: Registers, state: State) -> Iterator[Executed]:
        match expression:
            case exprs.Lookup():
                yield from self._lookup(expression, registers, state)
            case exprs.Compare():
                yield from self._compare(expression, registers, state)
            case exprs.ImmediateVerdict(verdict):
                yield registers, state, verdict
            case exprs.Dnat() | exprs.Masquerade() | exprs.Reject() | exprs.MetaSet():
                yield self._act(expression, registers, state)
            case exprs.Dynset():
                yield registers, state, None
            case exprs.Bitwise(register, mask, xor):
                held = _held(registers, register)
                if isinstance(held, Lot):
                    raise Untraceable("a rule calculates with a random number")
                cut = bytes(h & m ^ x for h, m, x in zip(held, mask, xor, strict=True))
                yield {**registers, register: cut}, state, None
            case _:
                yield {**registers, **self._load(expression, state)}, state, None

    def _act(self, expression: Expr, registers: Registers, state: State) -> Executed:
        match expression:
            case exprs.Dnat(_, address, port):
                to, number = _endpoint_of(registers, address, port, self._layout.address_length)
                moved = replace(state, destination=to, port=number, is_dnat=True)
                place = join_host_port(*_endpoint(moved))
                return registers, moved.noting(StepKind.DO, "dnat", f"to {place}"), End.ACCEPTED
            case exprs.MetaSet(_, register):
                mark = int.from_bytes(_plain(_held(registers, register)), sys.byteorder)
                marked = replace(state, mark=mark)
                return registers, marked.noting(StepKind.DO, "mark" if mark else "unmark"), None
            case exprs.Masquerade():
                hidden = replace(state, is_masqueraded=True)
                return registers, hidden.noting(StepKind.DO, "masquerade"), End.ACCEPTED
            case _:
                return registers, state.noting(StepKind.DO, "reject"), End.REJECTED

    def _load(self, expression: Expr, state: State) -> Registers:
        match expression:
            case exprs.Immediate(register, value):
                return {register: value}
            case exprs.Payload():
                return {expression.register: self._payload(expression, state)}
            case exprs.MetaLoad(register, key):
                return {register: _meta(key, state)}
            case exprs.Ct(register, nft.NFT_CT_STATE | nft.NFT_CT_STATUS as key):
                bits = nft.IPS_DST_NAT if state.is_dnat else 0
                is_state = key == nft.NFT_CT_STATE
                return {register: host32(nft.NF_CT_STATE_NEW if is_state else bits)}
            case exprs.Fib(register, flags):
                address = pack_address(state.arrival.source)
                if flags == nft.NFTA_FIB_F_DADDR:
                    address = state.destination
                return {
                    register: host32(nft.RTN_LOCAL if self._is_local(address) else nft.RTN_UNICAST)
                }
            case exprs.Numgen(register, modulus):
                return {register: Lot(modulus)}
            case exprs.Hash(register=register, modulus=modulus):
                return {register: Lot(modulus, is_hash=True)}
            case _:
                raise Untraceable(f"a rule has an expression that is none of ours: {expression!r}")

    def _payload(self, load: exprs.Payload, state: State) -> bytes:
        if (load.base, load.offset, load.length) == _DESTINATION_PORT:
            return state.port.to_bytes(2, "big")
        if load.base == nft.NFT_PAYLOAD_NETWORK_HEADER:
            if load.offset == self._layout.source_offset:
                return pack_address(state.arrival.source)[: load.length]
            if load.offset == self._layout.destination_offset:
                return state.destination[: load.length]
        raise Untraceable(f"a rule reads a part of the packet that none of ours reads: {load!r}")

    def _is_local(self, address: bytes) -> bool:
        return address in self._local or is_loopback(str(ipaddress.ip_address(address)))

    def _compare(
        self, test: exprs.Compare, registers: Registers, state: State
    ) -> Iterator[Executed]:
        held = _held(registers, test.register)
        if not isinstance(held, Lot):
            is_equal = held[: len(test.value)] == test.value
            yield (registers if is_equal != test.is_unequal else _BREAK), state, None
            return
        # A random number is drawn again for each rule; of a hash each rule tests another value.
        chance = Fraction(1, held.modulus - (state.missed if held.is_hash else 0))
        missed = state.missed + held.is_hash
        yield registers, replace(state, weight=state.weight * chance), None
        yield _BREAK, replace(state, weight=state.weight * (1 - chance), missed=missed), None

    def _lookup(
        self, lookup: exprs.Lookup, registers: Registers, state: State
    ) -> Iterator[Executed]:
        spec = self._items.get(SetItem(lookup.set))
        if not isinstance(spec, SetSpec):
            raise Untraceable(f"a rule uses set {lookup.set}, which does not exist")
        for key, found, weight in self._found(lookup, spec, registers):
            drawn = replace(state, weight=state.weight * weight)
            item = self._item_of(lookup.set, spec, key)
            text = self._key_text(spec, key)
            if found is None:
                yield _BREAK, drawn.noting(StepKind.MISS, lookup.set, text, item), None
                continue
            if isinstance(found, bytes) and lookup.result:
                drawn = drawn.noting(StepKind.LOOK, lookup.set, text, item)
                yield {**registers, lookup.result: found}, drawn, None
            elif isinstance(found, Verdict):
                text = f"{text} : {format_verdict(found)}"
                yield registers, drawn.noting(StepKind.LOOK, lookup.set, text, item), found
            else:
                yield registers, drawn.noting(StepKind.LOOK, lookup.set, text, item), None

    def _found(
        self, lookup: exprs.Lookup, spec: SetSpec, registers: Registers
    ) -> Iterator[tuple[bytes, bytes | Verdict | bool | None, Fraction]]:
        """Each thing that may be found, with the first key that leads to it and its probability.

        Slots with the same endpoint are one: a table may have a thousand.
        """
        keys = _keys(registers, lookup.register, spec.key_length)
        first: dict[bytes | Verdict | bool | None, bytes] = {}
        counts: Counter[bytes | Verdict | bool | None] = Counter()
        for key in keys:
            found = self._find(lookup.set, spec, key)
            first.setdefault(found, key)
            counts[found] += 1
        for found, key in first.items():
            yield key, found, Fraction(counts[found], len(keys))

    def _item_of(self, name: str, spec: SetSpec, key: bytes) -> Item:
        return PoolItem(name, key[:-4]) if spec.data_length else ElementItem(name, key)

    def _key_text(self, spec: SetSpec, key: bytes) -> str:
        return format_key(key, fields_of(spec), self._layout)

    def _find(self, name: str, spec: SetSpec, key: bytes) -> bytes | Verdict | bool | None:
        """What a set holds for a key: data, a verdict, True for a plain member, or None."""
        if spec.data_length:
            return self._slot(name, key)
        if key in self._clients.get(name, ()):
            return True
        element = self._items.get(ElementItem(name, key))
        if not isinstance(element, Element):
            return None
        return True if element.verdict is None else element.verdict

    def _slot(self, name: str, key: bytes) -> bytes | None:
        pool = self._items.get(PoolItem(name, key[:-4]))
        if not isinstance(pool, Pool):
            return None
        width = self._layout.address_length + 4
        start = int.from_bytes(key[-4:], sys.byteorder) * width
        slot = pool.slots[start : start + width]
        return slot if any(slot) else None


_BREAK: Registers = {-1: b""}
"""Stands for "this rule does not apply"."""


def _way(outcome: Outcome) -> Way:
    state = outcome.state
    address, port = _endpoint(state)
    return Way(
        end=outcome.end,
        destination=address,
        port=port,
        is_translated=state.is_dnat,
        is_masqueraded=state.is_masqueraded,
        share=state.weight,
        steps=state.steps,
    )


def _endpoint(state: State) -> tuple[str, int]:
    return str(ipaddress.ip_address(state.destination)), state.port


def _held(registers: Registers, register: int) -> bytes | Lot:
    if register not in registers:
        raise Untraceable("a rule uses a register that it has not filled")
    return registers[register]


def _plain(held: bytes | Lot) -> bytes:
    if isinstance(held, Lot):
        raise Untraceable("a random number is used where only a value makes sense")
    return held


def _endpoint_of(registers: Registers, address: int, port: int, length: int) -> tuple[bytes, int]:
    """Address and port out of the registers. A looked-up endpoint lies in one piece."""
    held = _plain(_held(registers, address))
    if port in registers and len(held) == length:
        return held, int.from_bytes(_plain(registers[port])[:2], "big")
    return held[:length], int.from_bytes(held[length : length + 2], "big")


def _meta(key: int, state: State) -> bytes:
    if key == nft.NFT_META_MARK:
        return host32(state.mark)
    if key == nft.NFT_META_L4PROTO:
        return bytes((state.arrival.protocol.number,))
    if key == nft.NFT_META_IIFNAME:
        return state.arrival.interface.encode().ljust(nft.IFNAMSIZ, b"\0")
    raise Untraceable(f"a rule reads metadata that none of ours reads: {key}")


def _keys(registers: Registers, register: int, length: int) -> list[bytes]:
    """The key in consecutive registers, or with a random number in it every possible key."""
    key = b""
    while len(key) < length:
        held = _held(registers, register)
        if isinstance(held, Lot):
            return [key + host32(number) for number in range(held.modulus)]
        key += held.ljust((len(held) + 3) & ~3, b"\0")
        register += max(1, (len(held) + 3) // 4)
    return [key[:length]]
