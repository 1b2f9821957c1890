"""nf_tables without a kernel: interprets the same bytes, with the same refusals.

It keeps tables, chains, rules, sets and elements of one family, executes a transaction as a whole
or not at all, and knows what the kernel would refuse: a rule that names a missing chain or set, a
chain or set that is deleted while something refers to it, an element that exists already with
other data. Tests hand it to the sink in place of a socket.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from msgspec import Struct, field
from msgspec.structs import replace

from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import (
    ATTR_HEADER_LENGTH,
    NFGEN_LENGTH,
    Failure,
    Message,
    iter_attrs,
    parse_attrs,
    text,
)
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import refusals_of


class _Table(Struct):
    """One table. It is copied before a transaction, so that a refused one leaves no trace."""

    info: nft.TableInfo
    chains: dict[str, nft.ChainInfo] = field(default_factory=dict)
    rules: dict[str, list[nft.RuleInfo]] = field(default_factory=dict)
    sets: dict[str, nft.SetInfo] = field(default_factory=dict)
    elements: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    """Packed elements by set and key, as a dump would show them."""

    def copy(self) -> _Table:
        return _Table(
            self.info,
            dict(self.chains),
            {name: list(rules) for name, rules in self.rules.items()},
            dict(self.sets),
            {name: dict(elements) for name, elements in self.elements.items()},
        )

    def users_of_chain(self, name: str) -> Iterator[str]:
        """What sends packets to this chain."""
        for chain, rules in self.rules.items():
            if any(name in _chains_named(rule) for rule in rules):
                yield f"chain {chain}"
        for set_name, elements in self.elements.items():
            for packed in elements.values():
                found = _parsed(packed)
                if found.verdict is not None and found.verdict.chain == name:
                    yield f"set {set_name}"

    def users_of_set(self, name: str) -> Iterator[str]:
        for chain, rules in self.rules.items():
            if any(name in _sets_named(rule) for rule in rules):
                yield f"chain {chain}"


class Refused(Exception):
    """The kernel would reply with this error number."""


class FakeNft:
    """The nf_tables of one family."""

    def __init__(self, family: int = 2) -> None:
        self.family = family
        self.commits = 0
        self.bytes_sent = 0
        self.lists_read: list[str] = []
        self.keys_asked = 0
        self.refuse: Callable[[Message], bool] = lambda message: False
        """Messages to refuse with "invalid argument", whatever they hold."""
        self._tables: dict[str, _Table] = {}

    @property
    def port_id(self) -> int:
        return 1

    def close(self) -> None:
        """Nothing is held open."""

    # ---- writing -----------------------------------------------------------------------------

    def commit(self, transaction: nft.Transaction) -> tuple[nft.Refusal, ...]:
        datagram = transaction.pack()
        before = {name: table.copy() for name, table in self._tables.items()}
        _, *messages, _ = codec.iter_messages(datagram)
        failures = []
        for message in messages:
            try:
                self._apply(message)
            except Refused as refused:
                failures.append(Failure(refused.args[0], message.seq))
        if failures:
            self._tables = before
            return refusals_of(transaction, failures)
        self.commits += 1
        self.bytes_sent += len(datagram)
        return ()

    def _apply(self, message: Message) -> None:
        kind = message.type & 0xFF
        _need(not self.refuse(message), errno.EINVAL)
        if kind == nft.NEWTABLE:
            info = nft.parse_table(message)
            self._tables.setdefault(info.name, _Table(info))
        elif kind == nft.DELTABLE:
            self._tables.pop(self._table_of(message).info.name)
        else:
            _ACTIONS[kind](self._table_of(message), message)

    def _table_of(self, message: Message) -> _Table:
        name = text(parse_attrs(message.body, NFGEN_LENGTH)[nft.NFTA_TABLE_NAME])
        if name not in self._tables:
            raise Refused(errno.ENOENT)
        return self._tables[name]

    # ---- reading -----------------------------------------------------------------------------

    def tables(self) -> list[nft.TableInfo]:
        return [table.info for table in self._tables.values()]

    def chains(self, table: str) -> list[nft.ChainInfo]:
        return list(self._tables[table].chains.values())

    def rules(self, table: str) -> list[nft.RuleInfo]:
        return [rule for rules in self._tables[table].rules.values() for rule in rules]

    def sets(self, table: str) -> list[nft.SetInfo]:
        return [
            replace(spec, count=len(self._tables[table].elements[spec.name]))
            for spec in self._tables[table].sets.values()
        ]

    def element_lists(self, table: str, name: str) -> list[bytes]:
        self.lists_read.append(name)
        return [b"".join(self._tables[table].elements[name].values())]

    def elements(self, table: str, name: str) -> list[nft.ElementInfo]:
        packed = self._tables[table].elements[name].values()
        return [_parsed(raw) for raw in packed]

    def stream_elements(self, table: str, name: str) -> Iterator[bytes]:
        yield from self.element_lists(table, name)

    def element_runs(
        self, table: str, name: str, runs: Sequence[Sequence[bytes]]
    ) -> list[list[bytes]]:
        held = self._tables[table].elements[name]
        self.keys_asked += sum(map(len, runs))
        asked = [[_parsed(packed).key for packed in run] for run in runs]
        return [list(map(held.__getitem__, takewhile(held.__contains__, run))) for run in asked]

    def objects(self, table: str) -> list[nft.ObjectInfo]:
        return []

    def flowtables(self, table: str) -> list[nft.ObjectInfo]:
        return []

    def wait_for_readers(self) -> None:
        """There are no packets."""


def _parsed(packed: bytes) -> nft.ElementInfo:
    return nft.parse_element(packed[ATTR_HEADER_LENGTH:])


def _chains_named(rule: nft.RuleInfo) -> set[str]:
    found = set()
    for expression in rule.expressions:
        if expression.name == "immediate":
            verdict = nft.parse_verdict(expression.attributes[nft.NFTA_IMMEDIATE_DATA])
            if verdict is not None and verdict.chain:
                found.add(verdict.chain)
    return found


def _sets_named(rule: nft.RuleInfo) -> set[str]:
    return {
        text(expression.attributes[_SET_NAMES[expression.name]])
        for expression in rule.expressions
        if expression.name in _SET_NAMES
    }


_SET_NAMES = {"lookup": nft.NFTA_LOOKUP_SET, "dynset": nft.NFTA_DYNSET_SET_NAME}


def _need(is_there: bool, number: int = errno.ENOENT) -> None:
    if not is_there:
        raise Refused(number)


def _new_chain(table: _Table, message: Message) -> None:
    info = nft.parse_chain(message)
    held = table.chains.setdefault(info.name, info)
    _need(held.hook == info.hook or info.hook is None, errno.EOPNOTSUPP)
    table.rules.setdefault(info.name, [])


def _del_chain(table: _Table, message: Message) -> None:
    name = nft.parse_chain(message).name
    _need(name in table.chains)
    is_base = table.chains[name].hook is not None
    _need(is_base or not table.rules[name], errno.EBUSY)
    _need(not any(table.users_of_chain(name)), errno.EBUSY)
    del table.chains[name], table.rules[name]


def _new_rule(table: _Table, message: Message) -> None:
    rule = nft.parse_rule(message)
    _need(rule.chain in table.chains)
    _need(_chains_named(rule) <= table.chains.keys())
    _need(_sets_named(rule) <= table.sets.keys())
    table.rules[rule.chain].append(rule)


def _del_rule(table: _Table, message: Message) -> None:
    name = text(parse_attrs(message.body, NFGEN_LENGTH)[nft.NFTA_RULE_CHAIN])
    _need(name in table.chains)
    table.rules[name].clear()


def _new_set(table: _Table, message: Message) -> None:
    info = nft.parse_set(message)
    held = table.sets.get(info.name, info)
    shape = (info.flags, info.key_type, info.key_length, info.data_type, info.data_length)
    _need(
        (held.flags, held.key_type, held.key_length, held.data_type, held.data_length) == shape,
        errno.EEXIST,
    )
    table.sets[info.name] = info
    table.elements.setdefault(info.name, {})


def _del_set(table: _Table, message: Message) -> None:
    name = text(parse_attrs(message.body, NFGEN_LENGTH)[nft.NFTA_SET_NAME])
    _need(name in table.sets)
    _need(not any(table.users_of_set(name)), errno.EBUSY)
    del table.sets[name], table.elements[name]


def _element_list(table: _Table, message: Message) -> tuple[dict[bytes, bytes], list[bytes]]:
    name = text(parse_attrs(message.body, NFGEN_LENGTH)[nft.NFTA_SET_ELEM_LIST_SET])
    _need(name in table.sets)
    listed = iter_attrs(nft.parse_element_list(message))
    packed = [codec.attr(nft.NFTA_LIST_ELEM, raw) for _, raw in listed]
    return table.elements[name], packed


def _new_elements(table: _Table, message: Message) -> None:
    held, packed = _element_list(table, message)
    for element in packed:
        found = _parsed(element)
        if found.verdict is not None and found.verdict.chain:
            _need(found.verdict.chain in table.chains)
        before = held.get(found.key)
        if before is not None:
            there = _parsed(before)
            _need((there.data, there.verdict) == (found.data, found.verdict), errno.EBUSY)
        else:
            held[found.key] = element


def _del_elements(table: _Table, message: Message) -> None:
    held, packed = _element_list(table, message)
    if not packed:
        held.clear()
    for element in packed:
        key = _parsed(element).key
        _need(key in held)
        del held[key]


_ACTIONS = {
    nft.NEWCHAIN: _new_chain,
    nft.DELCHAIN: _del_chain,
    nft.NEWRULE: _new_rule,
    nft.DELRULE: _del_rule,
    nft.NEWSET: _new_set,
    nft.DELSET: _del_set,
    nft.NEWSETELEM: _new_elements,
    nft.DELSETELEM: _del_elements,
}
