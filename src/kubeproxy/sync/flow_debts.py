"""Which service ports may have stale flows: owed until a search has gone through. Pure.

A service port passes through these states; there is one entry for each, however often it changes:

    change()       its plan has changed; what its flows were like before is remembered, and no rule
                   of it is applied while its rules are between two states in the kernel
    programmed()   the kernel has the new rules: flows that began before are owed a search
    begin()        a search begins
    settle()       a search that began after that found and deleted what was stale: paid. If it
                   failed, or something of this port was refused, it is owed still, for a later try

Where a Service lets connections to an endpoint that goes drain for a while, flows to it are spared
until then, and owed a search from then on. An endpoint that is back in time goes no more. At start
it is not known who has gone: everything is spared for the whole time, and searched for then. What
only drains waits apart, as that may be long and of many: no event looks at it before its time.

A change costs the size of its service port, however many endpoints have come and gone within the
limit: beyond `MOST_LEAVING` they are not distinguished any more, and all have the whole time again,
as at start. So constant change makes the end of connections late, and never early.

What changes while a search is under way is judged by its newest rules at once and stays owed, since
part of the table has gone by already. Every method is given the time; `is_stale` and `is_noticed`
may be called by another thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import Owner
from kubeproxy.plan.conntrack import (
    NO_FLOWS,
    PORT_BYTES,
    Departed,
    FlowRule,
    FlowRules,
    Socket,
    Standing,
    departed,
    limit_of,
    may_leave_stale,
    merge_former,
    owed_rules,
    remaining,
    spare,
    stayed,
    without_names,
)
from kubeproxy.plan.draining import Deadlines, Leaving
from kubeproxy.plan.frontends import Frontends

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
MOST_LEAVING = 1000
"""Endpoints of one service port that drain, each with its own time, unless it has more at once."""


class Debt(Struct):
    """One service port whose flows must be looked through, now or once endpoints have drained."""

    former: FlowRules
    rules: FlowRules
    claimed: FlowRules
    """The rules with what is spared: by these flows are judged."""
    leaving: Leaving[Departed]
    version: int
    """Differs after every change, so that a search settles only what it began with."""
    due_at: float
    begun_at: float = float("-inf")
    failures: int = 0

    @property
    def limit_seconds(self) -> float:
        return limit_of(self.rules)


_Claim: TypeAlias = tuple[Owner, FlowRule]
_Claims: TypeAlias = dict[Socket, tuple[_Claim, ...]]


class FlowDebts:
    """What is owed in one IP family."""

    def __init__(self) -> None:
        self._changing: dict[Owner, FlowRules] = {}
        self._owed: dict[Owner, Debt] = {}
        # The part of them that is owed a search already, whatever drains; and when others will be.
        self._due: dict[Owner, Debt] = {}
        self._draining = Deadlines[Owner]()
        # Tuples are replaced, never changed: another thread may be reading them.
        self._claims: dict[Protocol, _Claims] = {protocol: {} for protocol in Protocol}
        self._node_addresses: frozenset[bytes] = frozenset()
        self._own_addresses: frozenset[bytes] = frozenset()
        self._version = 0
        self.frontends: Frontends | None = None
        """Whose a place is, as soon as a service port asks for draining."""

    def __len__(self) -> int:
        """The number of service ports that are owed a search, without those that only drain."""
        return len(self._due)

    # --- what the engine reports ---

    def change(self, owner: Owner, former: FlowRules) -> None:
        """The plan of this service port has changed; until now its flows were like this."""
        held = self._changing.get(owner)
        self._changing[owner] = former if held is None else merge_former(held, former)
        if owner in self._owed:
            self._withdraw(owner, self._owed[owner].claimed)
            self._draining.discard(owner)

    def changing(self) -> Collection[Owner]:
        """The service ports that have changed and are not programmed yet."""
        return self._changing.keys()

    def programmed(self, owner: Owner, rules: FlowRules, now: float) -> None:
        """The kernel has the rules of this service port by which its flows must be like this."""
        former, debt = self._changing.pop(owner, NO_FLOWS), self._owed.get(owner)
        was_due = owner in self._due
        if debt is not None:
            former = merge_former(debt.former, former)
            self._drop(owner)
        leaving = debt.leaving if debt is not None else Leaving[Departed]()
        leaving.discard(stayed(former, rules))
        leaving.add(departed(former, rules), now)
        largest = max((len(rule.endpoints) for rule in rules.values()), default=0)
        if len(leaving) > max(MOST_LEAVING, largest) + len(rules):  # each place may be there, too
            former, leaving = without_names(former), Leaving[Departed]()
            leaving.add(departed(former, rules), now)
        limit = limit_of(rules)
        spared = spare(rules, leaving.left(limit, now))
        is_due = was_due or may_leave_stale(former, spared)
        claimed = owed_rules(former, spared)
        if claimed and (is_due or leaving):
            self._version += 1
            due_at = now if is_due else leaving.next_due(limit)
            owed = owed_rules(former, rules)
            debt = Debt(former, owed, claimed, leaving, self._version, due_at)
            self._owed[owner] = debt
            if is_due:
                self._due[owner] = debt
            else:
                self._draining.set(owner, due_at)
            self._claim(owner, claimed)

    def _drop(self, owner: Owner) -> None:
        self._withdraw(owner, self._owed.pop(owner).claimed)
        self._due.pop(owner, None)
        self._draining.discard(owner)

    def set_node(self, node: NodeFacts) -> None:
        """Node ports count on the addresses of this node."""
        self._node_addresses = frozenset(map(pack_address, node.node_port_addresses))
        self._own_addresses = frozenset(map(pack_address, node.addresses))

    def _claim(self, owner: Owner, rules: FlowRules) -> None:
        """Judge flows by these rules. They are the latest, unless the owner claims a place already.

        So what is the latest follows from what was programmed when, not from searches.
        """
        claims = self._claims[owner.protocol]
        for place, rule in rules.items():
            mine, held = (owner, rule), claims.get(place, ())
            if any(claim[0] == owner for claim in held):
                claims[place] = tuple(mine if claim[0] == owner else claim for claim in held)
            else:
                claims[place] = (*held, mine)

    def _withdraw(self, owner: Owner, places: Iterable[Socket]) -> None:
        claims = self._claims[owner.protocol]
        for place in places:
            left = tuple(claim for claim in claims.get(place, ()) if claim[0] != owner)
            if left:
                claims[place] = left
            else:
                claims.pop(place, None)

    # --- what a search asks ---

    def next_due(self) -> float:
        """The time from which something can be searched for; infinite if nothing is owed."""
        due = min((debt.due_at for _, debt in self._searchable()), default=float("inf"))
        return min(due, self._draining.first())

    def due(self, protocol: Protocol, now: float) -> Mapping[Owner, int]:
        """The service ports of this protocol that a search may settle, each with its version."""
        for owner in self._draining.take(now):
            self._due[owner] = self._owed[owner]
        return {
            owner: debt.version
            for owner, debt in self._searchable()
            if owner.protocol is protocol and debt.due_at <= now
        }

    def _searchable(self) -> Iterable[tuple[Owner, Debt]]:
        return (item for item in self._due.items() if item[0] not in self._changing)

    def begin(self, searched: Mapping[Owner, int], now: float) -> None:
        """A search for these begins: what has drained until now is spared no more."""
        for owner in searched:
            debt = self._owed[owner]
            debt.begun_at = now
            debt.claimed = spare(debt.rules, debt.leaving.left(debt.limit_seconds, now))
            self._claim(owner, debt.claimed)

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
        """Must a flow that was sent to `destination` and is answered by `reply_source` go?"""
        return self._ending(protocol, destination, reply_source) is not None

    def is_noticed(self, protocol: Protocol, destination: Socket, reply_source: Socket) -> bool:
        """Is the client of this flow to notice that it ends? Only if the rule that ends it says so.

        Not what any other rule says: that may be of a Service that does not have the place.
        """
        rule = self._ending(protocol, destination, reply_source)
        return rule is not None and rule.is_noticed(destination, reply_source)

    def _ending(
        self, protocol: Protocol, destination: Socket, reply_source: Socket
    ) -> FlowRule | None:
        """The rule by which this flow must go, or None."""
        claim = self._deciding(protocol, destination)
        if claim is None:
            return None
        owner, rule = claim
        if not rule.is_stale(destination, reply_source):
            return None
        if rule.standing is Standing.DRAINED and self._is_carried(owner, reply_source):
            return None
        return rule

    def _deciding(self, protocol: Protocol, destination: Socket) -> _Claim | None:
        """The claim by which flows to this place are judged: of the service port that has it.

        If that one owes nothing, or it is not known, the one that serves it decides, and of several
        the latest. But none that asks for draining: others may have the same external IP, and it
        must not end their connections.
        """
        claims = self._claims_on(protocol, destination)
        if not claims:
            return None
        plan = self.frontends.find(protocol, destination) if self.frontends else None
        holder = plan.id if plan else None
        for claim in claims:
            if claim[0] == holder:
                return claim
        others = [claim for claim in reversed(claims) if not claim[1].is_reset]
        return max(others, key=_standing, default=None)

    def _is_carried(self, owner: Owner, reply_source: Socket) -> bool:
        """Is this the socket of a process of this node that may carry the flow to an endpoint?

        A proxy of userspace mode that another mode replaces carries what it has to its end.
        """
        if reply_source[:-PORT_BYTES] not in self._own_addresses:
            return False
        debt = self._owed.get(owner)
        known = debt.former.values() if debt is not None else ()
        return not any(reply_source in rule.endpoints for rule in known)

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
                self._settle(owner, debt)

    def _settle(self, owner: Owner, debt: Debt) -> None:
        """Forget what has been searched for; what still drains is owed later."""
        debt.leaving.discard(debt.leaving.expired(debt.limit_seconds, debt.begun_at))
        if not debt.leaving:
            self._drop(owner)
            return
        self._due.pop(owner, None)
        kept = remaining(debt.claimed)
        self._withdraw(owner, debt.claimed.keys() - kept.keys())
        debt.rules, debt.former, debt.claimed = remaining(debt.rules), kept, kept
        debt.failures = 0
        debt.due_at = debt.leaving.next_due(debt.limit_seconds)
        self._draining.set(owner, debt.due_at)

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
