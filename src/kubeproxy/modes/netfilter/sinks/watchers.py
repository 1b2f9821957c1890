"""Notice when another program edits our iptables rules, without listing them.

Two ways, by the kind of tool that this host has:

    iptables-nft      the kernel notifies of every change, with the chain it concerns and the port
                      id of its author, and of the process that committed it. Chains that are not
                      ours are of no interest, so programs that edit their own chains all the time
                      cause nothing.
    iptables-legacy   there are no notifications. The number of entries and bytes of a table is
                      asked for, and compared with what our own last write left. Which chain
                      differs is unknown, so any program's edit means that we must look. Who did
                      it is known only of a program that still holds the xtables lock.

Our own writes are made by tools, hence by a new author each time. A watcher is notified before and
after each of them: what happens in between is ours, unless there was more than one author.

Promises: nothing that concerns us is passed over but, with iptables-legacy, an edit that leaves
the number of rules and bytes as it was, or one in the milliseconds between the commit of our write
and the end of its tool. No process is started. Leaves to others: when to ask (`monitor`), and the
repair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink.codec import Message
from kubeproxy.kernel.netlink.socket import NETLINK_NETFILTER, NetlinkMonitor, Overrun
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.xtables_info import TableInfo, XtablesInfo
from kubeproxy.kernel.xtables_lock import foreign_lock_holder
from kubeproxy.modes.base import by_whom
from kubeproxy.modes.netfilter.items import Scope

_RECEIVE_BUFFER = 1 << 25
"""A service of 10,000 endpoints is rewritten with 10 MB of notifications at once."""


class TableWatcher(Protocol):
    """What other programs did to the tables of one family."""

    def begin(self) -> None:
        """One of our own writes begins."""

    def end(self, *, succeeded: bool) -> None:
        """It has ended; if it did not succeed, nothing was written."""

    def take(self) -> str:
        """What was edited since the last call, or an empty text; nothing during a write."""

    def close(self) -> None: ...


def open_watcher(family: Family, scope: Scope, *, is_nft: bool) -> TableWatcher:
    """A watcher of the current network namespace. Raises KernelError."""
    return NoticeWatcher(family, scope) if is_nft else SizeWatcher(XtablesInfo(family), scope)


class Sizes(Protocol):
    """What `SizeWatcher` needs of the kernel."""

    def read(self, table: str) -> TableInfo | None: ...

    def close(self) -> None: ...


class SizeWatcher:
    """Compares the sizes of tables with those after our last write, for iptables-legacy."""

    def __init__(
        self, sizes: Sizes, scope: Scope, holder: Callable[[], str] = foreign_lock_holder
    ) -> None:
        """`holder` returns which other process holds the xtables lock."""
        self._sizes = sizes
        self._holder = holder
        self._tables = scope.tables
        self._found = ""
        self._is_writing = False
        self._known = self._read()

    def begin(self) -> None:
        self._compare()
        self._is_writing = True

    def end(self, *, succeeded: bool) -> None:
        self._is_writing = False
        if succeeded:
            self._known = self._read()
        else:
            self._compare()

    def take(self) -> str:
        if self._is_writing:
            return ""
        self._compare()
        found, self._found = self._found, ""
        return found

    def close(self) -> None:
        self._sizes.close()

    def _compare(self) -> None:
        now = self._read()
        changed = [table for table in self._known if now[table] != self._known[table]]
        if changed:
            what = f"the size of table {' and '.join(changed)} has changed"
            holder = self._holder()
            self._found = f"{what}; the iptables lock is held by {holder}" if holder else what
        self._known = now

    def _read(self) -> dict[str, TableInfo | None]:
        return {table: self._size(table) for table in self._tables}

    def _size(self, table: str) -> TableInfo | None:
        try:
            return self._sizes.read(table)
        except KernelError:
            return None  # a write of ours must not fail for this


class NoticeWatcher:
    """Reads the kernel's notifications about the chains of a scope, for iptables-nft."""

    def __init__(self, family: Family, scope: Scope) -> None:
        self._family_byte = bytes((family.af,))
        self._scope = scope
        self._jump_chains = frozenset((jump.table, jump.chain) for jump, _ in scope.jumps)
        self._found: dict[str, None] = {}
        self._authors: set[int] = set()
        self._committers: dict[str, None] = {}
        self._is_writing = False
        self._monitor = NetlinkMonitor(
            NETLINK_NETFILTER, (nft.NFNLGRP_NFTABLES,), receive_buffer=_RECEIVE_BUFFER
        )

    def begin(self) -> None:
        self._note(self._arrived())
        self._is_writing = True

    def end(self, *, succeeded: bool) -> None:
        """Of several authors one is ours; which one is not known, so all count as foreign."""
        self._is_writing = False
        messages = self._arrived()
        # Who changed this family counts whether it concerns us or not. A write of ours may do
        # nothing that does, such as add a jump, and an edit right behind it is not ours.
        authors = {each.pid for each in messages if each.type != nft.NEW_GENERATION}
        if not succeeded:
            self._note(messages)
        elif len(authors) > 1:
            # No process is named: one of them would be a tool of ours.
            self._note([each for each in messages if each.type != nft.NEW_GENERATION])

    def take(self) -> str:
        if self._is_writing:
            return ""
        self._note(self._arrived())
        found, self._found = list(self._found), {}
        committers, self._committers = self._committers, {}
        self._authors.clear()
        shown = ", ".join(found[:_MOST_SHOWN])
        more = len(found) - _MOST_SHOWN
        return (f"{shown} and {more} more" if more > 0 else shown) + by_whom(committers)

    def close(self) -> None:
        self._monitor.close()

    def _arrived(self) -> list[Message]:
        """The messages about this family that are there by now, and those that end transactions.

        They are not parsed yet.
        """
        arrived: list[Message] = []
        while True:
            try:
                messages = self._monitor.receive_now()
            except Overrun:
                self._found["more than the kernel could report"] = None
                continue
            except KernelError:
                return arrived  # a write of ours must not fail for this
            if not messages:
                return arrived
            # Changes of the other family are recognised by one byte.
            arrived += [
                each
                for each in messages
                if each.body[:1] == self._family_byte or each.type == nft.NEW_GENERATION
            ]

    def _note(self, messages: list[Message]) -> None:
        """Keep what of ours these messages are about, and who committed it."""
        for message in messages:
            if message.type == nft.NEW_GENERATION:
                if message.pid in self._authors:
                    self._committers[nft.parse_committer(message)] = None
                continue
            notice = nft.parse_notification(message)
            if notice is not None and self._is_ours(notice):
                self._found[f"{notice.table} {notice.name}".rstrip()] = None
                self._authors.add(message.pid)

    def _is_ours(self, notice: nft.Notification) -> bool:
        """Does it concern a chain of ours, or remove something that may be a jump of ours?"""
        scope, table, name = self._scope, notice.table, notice.name
        if table not in scope.tables or notice.kind in (nft.NEWTABLE, nft.NEWSET, nft.DELSET):
            return False
        if not name or scope.owns(table, name) or scope.shares(table, name):
            return True
        is_visited = scope.is_guest_of(table, name) or (table, name) in self._jump_chains
        return is_visited and notice.is_removal


_MOST_SHOWN = 3
