"""Which service ports may have stale flows: owed until a search has gone through. Pure.

A service port passes through these states; there is one entry for each, however often it changes:

    change()       its plan has changed; what its flows were like before is remembered, and no rule
                   of it is applied while its rules are between two states in the kernel
    programmed()   the kernel has the new rules: flows that began before are owed a search
    settle()       a search that began after that found and deleted what was stale: paid. If it
                   failed, or something of this port was refused, it is owed still, for a later try

What changes while a search is under way is judged by its newest rules at once and stays owed, since
part of the table has gone by already. Every method is given the time; `is_stale` may be called by
another thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.ids import Protocol
from kubeproxy.modes.base import Owner
from kubeproxy.plan.conntrack import (
    NO_FLOWS,
    PORT_BYTES,
    FlowRule,
    FlowRules,
    Socket,
    may_leave_stale,
    merge_former,
    owed_rules,
)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class Debt(Struct):
    """One service port whose flows must be looked through."""

    former: FlowRules
    rules: FlowRules
    version: int
    """Differs after every change, so that a search settles only what it began with."""
    due_at: float
    failures: int = 0


_Claim: TypeAlias = tuple[Owner, FlowRule]
_Claims: TypeAlias = dict[Socket, tuple[_Claim, ...]]


class FlowDebts:
    """What is owed in one IP family."""

    def __init__(self) -> None:
        self._changing: dict[Owner, FlowRules] = {}
        self._owed: dict[Owner, Debt] = {}
        # Tuples are replaced, never changed: another thread may be reading them.
        self._claims: dict[Protocol, _Claims] = {protocol: {} for protocol in Protocol}
        self._node_addresses: frozenset[bytes] = frozenset()
        self._version = 0

    def __len__(self) -> int:
        return len(self._owed)

    # --- what the engine reports ---

    def change(self, owner: Owner, former: FlowRules) -> None:
        """The plan of this service port has changed; until now its flows were like this."""
        held = self._changing.get(owner)
        self._changing[owner] = former if held is None else merge_former(held, former)
        if owner in self._owed:
            self._withdraw(owner, self._owed[owner].rules)

    def changing(self) -> Collection[Owner]:
        """The service ports that have changed and are not programmed yet."""
        return self._changing.keys()

    def programmed(self, owner: Owner, rules: FlowRules, now: float) -> None:
        """The kernel has the rules of this service port by which its flows must be like this."""
        former, debt = self._changing.pop(owner, NO_FLOWS), self._owed.get(owner)
        if debt is not None:
            former = merge_former(debt.former, former)
        elif not may_leave_stale(former, rules):
            return
        self.owe(owner, owed_rules(former, rules), now, former=former)

    def owe(
        self, owner: Owner, rules: FlowRules, now: float, *, former: FlowRules = NO_FLOWS
    ) -> None:
        """Owe a search by these rules, in place of what was owed for this service port."""
        if owner in self._owed:
            self._withdraw(owner, self._owed[owner].rules)
        self._version += 1
        self._owed[owner] = Debt(former, rules, self._version, due_at=now)
        self._claim(owner, rules)

    def set_node_addresses(self, addresses: frozenset[bytes]) -> None:
        """Node ports count on these addresses."""
        self._node_addresses = addresses

    def _claim(self, owner: Owner, rules: FlowRules) -> None:
        claims = self._claims[owner.protocol]
        for place, rule in rules.items():
            claims[place] = (*claims.get(place, ()), (owner, rule))

    def _withdraw(self, owner: Owner, rules: FlowRules) -> None:
        claims = self._claims[owner.protocol]
        for place in rules:
            left = tuple(claim for claim in claims.get(place, ()) if claim[0] != owner)
            if left:
                claims[place] = left
            else:
                claims.pop(place, None)

    # --- what a search asks ---

    def next_due(self) -> float:
        """The time from which something can be searched for; infinite if nothing is owed."""
        return min((debt.due_at for _, debt in self._searchable()), default=float("inf"))

    def due(self, protocol: Protocol, now: float) -> Mapping[Owner, int]:
        """The service ports of this protocol that a search may settle, each with its version."""
        return {
            owner: debt.version
            for owner, debt in self._searchable()
            if owner.protocol is protocol and debt.due_at <= now
        }

    def _searchable(self) -> Iterable[tuple[Owner, Debt]]:
        return (item for item in self._owed.items() if item[0] not in self._changing)

    def places(self, owners: Iterable[Owner]) -> frozenset[Socket]:
        """Where flows of these service ports were sent first."""
        return frozenset(place for owner in owners for place in self._owed[owner].rules)

    def addresses(self, places: Collection[Socket]) -> frozenset[bytes]:
        """The addresses in these places: for a node port, all that serve node ports."""
        found = {place[:-PORT_BYTES] for place in places}
        if b"" in found:
            found |= self._node_addresses
        return frozenset(found - {b""})

    def is_stale(self, protocol: Protocol, destination: Socket, reply_source: Socket) -> bool:
        """Must a flow that was sent to `destination` and is answered by `reply_source` go?

        Where several service ports claim one place, the one that serves it decides, and the latest.
        """
        claims = self._claims_on(protocol, destination)
        if not claims:
            return False
        _, rule = max(reversed(claims), key=_standing) if len(claims) > 1 else claims[0]
        return rule.is_stale(destination, reply_source)

    def _claims_on(self, protocol: Protocol, destination: Socket) -> tuple[_Claim, ...]:
        claims = self._claims[protocol]
        found = claims.get(destination)
        if found is None and destination[:-PORT_BYTES] in self._node_addresses:
            found = claims.get(destination[-PORT_BYTES:])
        return found or ()

    # --- what came of it ---

    def settle(
        self,
        protocol: Protocol,
        searched: Mapping[Owner, int],
        refused: Iterable[Socket],
        now: float,
    ) -> None:
        """Forget what a complete search began with, unless a flow to these places was refused."""
        left = {owner for place in refused for owner, _ in self._claims_on(protocol, place)}
        self.postpone({o: version for o, version in searched.items() if o in left}, now)
        for owner, version in searched.items():
            debt = self._owed.get(owner)
            if owner in left or owner in self._changing or debt is None:
                continue
            if debt.version == version:
                self._withdraw(owner, debt.rules)
                del self._owed[owner]

    def postpone(self, searched: Mapping[Owner, int], now: float) -> None:
        """Try again later what a search could not settle; each failure in a row doubles the pause.

        What has changed meanwhile is due as it was.
        """
        for owner, version in searched.items():
            debt = self._owed.get(owner)
            if debt is not None and debt.version == version:
                pause = FIRST_PAUSE_SECONDS * 2 ** min(debt.failures, 10)
                debt.due_at = now + min(pause, LONGEST_PAUSE_SECONDS)
                debt.failures += 1


def _standing(claim: _Claim) -> int:
    return claim[1].standing
