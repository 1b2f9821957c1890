"""Marks the packets of one connection and receives the kernel's reports about them.

With nf_tables, and so with iptables-nft, a table of our own sets the `nftrace` mark. The table is
owned by a socket of this process: the kernel removes it when the process ends, however that is.
What iptables-legacy has instead is in `legacy`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol as Seam

from msgspec import Struct

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.exec import run_tool
from kubeproxy.kernel.nftables import traces
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import Nftables, open_tracer, raise_refusals
from kubeproxy.modes.netfilter.rules.text import TableText, parse_save
from kubeproxy.modes.netfilter.sinks.tools import Programs
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile.codec import pack_expression, parse_rule
from kubeproxy.modes.nftables.rules import expressions as exprs
from kubeproxy.modes.nftables.rules.expressions import Expr
from kubeproxy.modes.nftables.rules.pieces import REGISTER, destination, source, state_new
from kubeproxy.modes.nftables.rules.text import format_rule, format_verdict

TABLE_PREFIX = "kpctl-trace-"
END_OF_CHAIN = "end of chain"
QUIET_SECONDS = 0.5
"""After so long without a report the packet has passed all rules."""
_AFTER_CONNTRACK = -190
_TRANSPORT_PORT = (nft.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)


class Match(Struct, frozen=True):
    """The connection to mark. Without `source` that of any client."""

    family: Family
    protocol: Protocol
    destination: str
    port: int
    source: str = ""


class Passed(Struct, frozen=True):
    """A rule that the packet met, or the end of a chain; and where the packet was sent then."""

    table: str
    chain: str
    rule: str
    verdict: str = ""
    destination: tuple[str, int] | None = None

    @property
    def is_drop(self) -> bool:
        return self.verdict == "drop"


class Marking(Seam):
    """Packets are marked between `open` and `close`."""

    async def open(self) -> None:
        """Raises KernelError."""

    async def collect(self, timeout_seconds: float) -> Sequence[Passed]:
        """What the first marked packet passes; nothing if none comes in time."""

    async def close(self) -> None:
        """Leave everything as it was. Harmless when repeated."""


# ---- nf_tables -------------------------------------------------------------------------------


def marker(match: Match, table: str) -> nft.Transaction:
    """A table whose only rules mark new connections of this kind."""
    transaction = nft.Transaction(match.family.af)
    body = nft.table_body(table, "follows one connection", traces.NFT_TABLE_F_OWNER)
    transaction.add(nft.NEWTABLE, body, f"table {table}", nft.CREATE)
    packed = [pack_expression(each) for each in _marking_expressions(match)]
    for chain, hook in (("in", nft.NF_INET_PRE_ROUTING), ("out", nft.NF_INET_LOCAL_OUT)):
        place = nft.Hook("filter", hook, _AFTER_CONNTRACK)
        transaction.add(nft.NEWCHAIN, nft.chain_body(table, chain, place), chain, nft.CREATE)
        transaction.add(nft.NEWRULE, nft.rule_body(table, chain, packed), chain, nft.APPEND)
    return transaction


def _marking_expressions(match: Match) -> Iterator[Expr]:
    layout = names.layout_of(match.family)
    yield from state_new()
    yield exprs.MetaLoad(REGISTER, nft.NFT_META_L4PROTO)
    yield exprs.Compare(REGISTER, bytes((match.protocol.number,)))
    yield from destination(layout)
    yield exprs.Compare(REGISTER, pack_address(match.destination))
    yield exprs.Payload(REGISTER, *_TRANSPORT_PORT)
    yield exprs.Compare(REGISTER, match.port.to_bytes(2, "big"))
    if match.source:
        yield from source(layout)
        yield exprs.Compare(REGISTER, pack_address(match.source))
    yield exprs.Immediate(REGISTER, b"\1")
    yield exprs.MetaSet(traces.NFT_META_NFTRACE, REGISTER)


class NftMarking:
    """Through nf_tables. `save` prints a table of iptables-nft, if that is what is in use."""

    def __init__(self, match: Match, programs: Programs | None = None) -> None:
        self._match = match
        self._programs = programs
        self._table = f"{TABLE_PREFIX}{os.getpid()}"
        self._nftables = Nftables(match.family.af)
        self._monitor = open_tracer()

    async def open(self) -> None:
        raise_refusals(self._nftables.commit(marker(self._match, self._table)))

    async def collect(self, timeout_seconds: float) -> Sequence[Passed]:
        events: list[traces.TraceEvent] = []
        wait = timeout_seconds
        try:
            while True:
                messages = await asyncio.wait_for(self._monitor.receive(), wait)
                found = (traces.parse_trace(message) for message in messages)
                events += [event for event in found if event and event.table != self._table]
                wait = QUIET_SECONDS if events else wait
        except TimeoutError:
            first = [event for event in events if event.packet == events[0].packet]
            return await self._passed(first)

    async def close(self) -> None:
        self._monitor.close()
        self._nftables.close()

    async def _passed(self, events: Sequence[traces.TraceEvent]) -> list[Passed]:
        texts: dict[str, Mapping[tuple[str, int], str]] = {}
        found = []
        for event in events:
            if event.table not in texts:
                texts[event.table] = await self._rule_texts(event.table)
            found.append(_passed(event, texts[event.table]))
        return found

    async def _rule_texts(self, table: str) -> Mapping[tuple[str, int], str]:
        """The rules of a table by chain and handle, as the tool prints them that made them."""
        rules = self._nftables.rules(table)
        if table == names.TABLE_NAME:
            layout = names.layout_of(self._match.family)
            return {(r.chain, r.handle): format_rule(parse_rule(r), layout) for r in rules}
        saved = await saved_table(self._programs, table) if self._programs else None
        if saved is None:
            return {}
        numbers: dict[str, int] = {}
        texts = {}
        for rule in rules:
            # The tool prints one line for each rule, in the kernel's order.
            number = numbers[rule.chain] = numbers.get(rule.chain, 0) + 1
            texts[rule.chain, rule.handle] = rule_line(saved, rule.chain, number)
        return texts


def _passed(event: traces.TraceEvent, texts: Mapping[tuple[str, int], str]) -> Passed:
    rule = texts.get((event.chain, event.handle), f"rule {event.handle}")
    if not event.handle:
        rule = END_OF_CHAIN
    verdict = event.verdict
    is_known = verdict is not None and (nft.NFT_RETURN <= verdict.code <= nft.NF_ACCEPT)
    text = format_verdict(verdict) if verdict is not None and is_known else ""
    return Passed(event.table, event.chain, rule, text, event.destination)


async def saved_table(programs: Programs, table: str) -> TableText | None:
    """A table as its tool prints it, or None."""
    done = await run_tool([programs.save, "-t", table])
    tables = parse_save(done.stdout) if done.is_success else ()
    return next((found for found in tables if found.name == table), None)


def rule_line(saved: TableText, chain: str, number: int) -> str:
    """The rule with this number in a chain, without the chain."""
    lines = saved.lines(chain)
    text = lines[number - 1] if 0 < number <= len(lines) else ""
    return text.removeprefix(f"-A {chain} ") or f"rule {number}"
