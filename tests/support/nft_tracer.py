"""Follows a packet through the items of the nftables mode, without a kernel.

It executes the expressions as the kernel would: registers, sets, verdicts, hooks by priority.
Where a rule draws a random number, every outcome is followed with its probability, so that one
trace shows both where a connection may go and how evenly. Pure.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from kpctl.flows.trace import Arrival, End, Ruling, Traced
from kubeproxy.facts.address import is_loopback, pack_address
from kubeproxy.facts.node import NodeFacts
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.wire import Verdict
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Item,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
    Value,
)
from kubeproxy.modes.nftables.names import layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.render import render
from kubeproxy.modes.nftables.rules import expressions as exprs
from kubeproxy.modes.nftables.rules.expressions import Expr
from kubeproxy.modes.nftables.rules.pieces import host32
from kubeproxy.modes.nftables.scaffold import scaffold
from kubeproxy.plan.types import ServicePlan

_PREROUTING, _INPUT, _FORWARD = nft.NF_INET_PRE_ROUTING, nft.NF_INET_LOCAL_IN, nft.NF_INET_FORWARD
_OUTPUT, _POSTROUTING = nft.NF_INET_LOCAL_OUT, nft.NF_INET_POST_ROUTING


class Lot(Struct, frozen=True):
    """A register whose value is a random number below `modulus`, not yet drawn."""

    modulus: int


class State(Struct, frozen=True):
    """A packet on its way."""

    arrival: Arrival
    destination: bytes
    port: int
    mark: int = 0
    is_dnat: bool = False
    is_masqueraded: bool = False
    weight: Fraction = Fraction(1)
    trail: tuple[tuple[str, str], ...] = ()
    """What was passed: ("hook", chain), ("enter", chain), ("leave", chain), ("look", set), and
    ("do", action)."""

    def noting(self, what: str, name: str) -> State:
        return replace(self, trail=(*self.trail, (what, name)))


class Outcome(Struct, frozen=True):
    """One way a connection can go, and how likely it is."""

    end: End
    state: State


Registers = dict[int, bytes | Lot]
Step = tuple[Registers, State, Verdict | End | None]
"""Registers and packet after an expression, with a verdict or an end if the rule is over."""


class ItemTracer:
    """Traces packets of one node and one family through the items a sink holds or wants."""

    def __init__(
        self, items: Mapping[Item, Value], node: NodeFacts, clients: Mapping[str, set[bytes]] = {}
    ) -> None:
        self._items = items
        self._layout = layout_of(node.family)
        self._local = {pack_address(address) for address in node.addresses}
        self._clients = clients
        """Members of affinity sets, which packets fill and so are no items."""

    def trace(self, arrival: Arrival) -> Traced:
        """What the rules do with a new connection."""
        outcomes = self.outcomes(arrival)
        ends = {outcome.end for outcome in outcomes}
        if ends != {End.ACCEPTED}:
            ruling = Ruling.DROP if End.DROPPED in ends else Ruling.REJECT
            return Traced(ruling)
        moved = [o.state for o in outcomes if o.state.is_dnat]
        if not moved:
            return Traced(Ruling.UNTOUCHED)
        where = frozenset(_endpoint(state) for state in moved)
        hidden = frozenset(_endpoint(state) for state in moved if state.is_masqueraded)
        return Traced(Ruling.FORWARD, where, hidden)

    def spread(self, arrival: Arrival) -> dict[tuple[str, int], Fraction]:
        """How likely each endpoint is."""
        found: dict[tuple[str, int], Fraction] = {}
        for outcome in self.outcomes(arrival):
            if outcome.state.is_dnat:
                endpoint = _endpoint(outcome.state)
                found[endpoint] = found.get(endpoint, Fraction(0)) + outcome.state.weight
        return found

    def outcomes(self, arrival: Arrival) -> list[Outcome]:
        """Every way the connection can go."""
        state = State(arrival, pack_address(arrival.destination), arrival.port)
        first = _OUTPUT if arrival.is_from_node else _PREROUTING
        return [end for begun in self._hook(first, state) for end in self._second(begun)]

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
        yield from self._base_chains(self._at_hook(number), state)

    def _at_hook(self, number: int) -> list[str]:
        found = [
            (value.hook.priority, item.name)
            for item, value in self._items.items()
            if isinstance(item, ChainItem) and isinstance(value, Chain)
            if value.hook is not None and value.hook.number == number
        ]
        return [name for _, name in sorted(found, key=lambda pair: pair[0])]

    def _base_chains(self, chains: list[str], state: State) -> Iterator[Outcome]:
        if not chains:
            yield Outcome(End.ACCEPTED, state)
            return
        for end, after in self._chain(chains[0], state, "hook"):
            if end in (End.FELL_OUT, End.ACCEPTED):
                yield from self._base_chains(chains[1:], after)
            else:
                yield Outcome(end, after)

    # ---- chains and rules --------------------------------------------------------------------

    def _chain(self, name: str, state: State, how: str = "enter") -> Iterator[tuple[End, State]]:
        chain = self._items.get(ChainItem(name))
        if not isinstance(chain, Chain):
            raise LookupError(f"a rule goes to chain {name}, which does not exist")
        for end, after in self._rules(chain, 0, state.noting(how, name)):
            yield end, after.noting("leave", name) if end is End.FELL_OUT else after

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
            yield End.DROPPED, state.noting("do", "drop")

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

    def _step(self, expression: Expr, registers: Registers, state: State) -> Iterator[Step]:
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
                held = registers[register]
                if isinstance(held, Lot):
                    raise TypeError("bitwise over a random number")
                cut = bytes(h & m ^ x for h, m, x in zip(held, mask, xor, strict=True))
                yield {**registers, register: cut}, state, None
            case _:
                yield {**registers, **self._load(expression, state)}, state, None

    def _act(self, expression: Expr, registers: Registers, state: State) -> Step:
        match expression:
            case exprs.Dnat(_, address, port):
                to, number = _endpoint_of(registers, address, port, self._layout.address_length)
                moved = replace(state, destination=to, port=number, is_dnat=True)
                return registers, moved.noting("do", "dnat"), End.ACCEPTED
            case exprs.MetaSet(_, register):
                mark = int.from_bytes(_plain(registers[register]), sys.byteorder)
                marked = replace(state, mark=mark)
                return registers, marked.noting("do", "mark" if mark else "unmark"), None
            case exprs.Masquerade():
                hidden = replace(state, is_masqueraded=True)
                return registers, hidden.noting("do", "masquerade"), End.ACCEPTED
            case _:
                return registers, state.noting("do", "reject"), End.REJECTED

    def _load(self, expression: Expr, state: State) -> Registers:
        match expression:
            case exprs.Immediate(register, value):
                return {register: value}
            case exprs.Payload():
                return {expression.register: self._payload(expression, state)}
            case exprs.MetaLoad(register, key):
                return {register: _meta(key, state)}
            case exprs.Ct(register, key):
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
            case _:
                raise TypeError(f"the tracer does not know {expression!r}")

    def _payload(self, load: exprs.Payload, state: State) -> bytes:
        if load.base == nft.NFT_PAYLOAD_TRANSPORT_HEADER:
            return state.port.to_bytes(2, "big")
        is_source = load.offset == self._layout.source_offset
        address = pack_address(state.arrival.source) if is_source else state.destination
        return address[: load.length]

    def _is_local(self, address: bytes) -> bool:
        return address in self._local or is_loopback(str(ipaddress.ip_address(address)))

    def _compare(self, test: exprs.Compare, registers: Registers, state: State) -> Iterator[Step]:
        held = registers[test.register]
        if not isinstance(held, Lot):
            is_equal = held[: len(test.value)] == test.value
            yield (registers if is_equal != test.is_unequal else _BREAK), state, None
            return
        # A random number is only ever compared with zero.
        hit = replace(state, weight=state.weight / held.modulus)
        miss = replace(state, weight=state.weight * (held.modulus - 1) / held.modulus)
        yield registers, hit, None
        yield _BREAK, miss, None

    def _lookup(self, lookup: exprs.Lookup, registers: Registers, state: State) -> Iterator[Step]:
        spec = self._items.get(SetItem(lookup.set))
        if not isinstance(spec, SetSpec):
            raise LookupError(f"a rule uses set {lookup.set}, which does not exist")
        for key, weight in _keys(registers, lookup.register, spec.key_length):
            drawn = replace(state, weight=state.weight * weight)
            found = self._find(lookup.set, spec, key)
            if found is None:
                yield _BREAK, drawn, None
                continue
            drawn = drawn.noting("look", lookup.set)
            if isinstance(found, bytes) and lookup.result:
                yield {**registers, lookup.result: found}, drawn, None
            elif isinstance(found, Verdict):
                yield registers, drawn, found
            else:
                yield registers, drawn, None

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


def _endpoint(state: State) -> tuple[str, int]:
    return str(ipaddress.ip_address(state.destination)), state.port


def _plain(held: bytes | Lot) -> bytes:
    if isinstance(held, Lot):
        raise TypeError("a random number is used where only a value makes sense")
    return held


def _endpoint_of(registers: Registers, address: int, port: int, length: int) -> tuple[bytes, int]:
    """Address and port out of the registers. A looked-up endpoint lies in one piece."""
    held = _plain(registers[address])
    if port in registers and len(held) == length:
        return held, int.from_bytes(_plain(registers[port])[:2], "big")
    return held[:length], int.from_bytes(held[length : length + 2], "big")


def _meta(key: int, state: State) -> bytes:
    if key == nft.NFT_META_MARK:
        return host32(state.mark)
    if key == nft.NFT_META_L4PROTO:
        return bytes((state.arrival.protocol.number,))
    return state.arrival.interface.encode().ljust(nft.IFNAMSIZ, b"\0")


def _keys(registers: Registers, register: int, length: int) -> Iterator[tuple[bytes, Fraction]]:
    """The key in consecutive registers, or with a random number in it every possible key."""
    key = b""
    while len(key) < length:
        held = registers[register]
        if isinstance(held, Lot):
            for number in range(held.modulus):
                yield key + host32(number), Fraction(1, held.modulus)
            return
        key += held.ljust((len(held) + 3) & ~3, b"\0")
        register += max(1, (len(held) + 3) // 4)
    yield key[:length], Fraction(1)


def trace_plans(plans: Sequence[ServicePlan], node: NodeFacts) -> ItemTracer:
    """A tracer over what the mode renders for these plans."""
    return ItemTracer(rendered(plans, node), node)


def rendered(plans: Sequence[ServicePlan], node: NodeFacts) -> dict[Item, Value]:
    """All items for these plans, of a contested one the smallest owner's, as in the ledger."""
    items = dict(scaffold(node, Options()))
    for plan in sorted(plans, key=lambda plan: plan.id):
        for item, value in render(plan, node, Options()).items():
            items.setdefault(item, value)
    return items
