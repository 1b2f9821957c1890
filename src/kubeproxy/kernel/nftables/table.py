"""nf_tables of one family: commit a transaction, try one, list what there is, watch for changes.

Why: sink, check and clean-up use nf_tables through these few calls, without a process. Promise: a
transaction takes effect as a whole or not at all, before the call returns, and dumps are
consistent. Leaves to others: what the messages mean (`wire`), and which there should be.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from kubeproxy.errors import KernelError
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import Failure, Message
from kubeproxy.kernel.netlink.socket import (
    NETLINK_NETFILTER,
    NetlinkMonitor,
    NetlinkSocket,
    kernel_error,
)
from kubeproxy.kernel.nftables import traces
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.rcu import wait_for_readers

KEYS_PER_CALL = 64
"""The kernel replies with one message for each key, and all of them wait in the receive buffer."""

_REPLY_BYTES = 8192
"""What a reply takes of the buffer: the kernel makes room for a page of attributes."""


class NftablesTable(Protocol):
    """What the rest of the program needs of nf_tables."""

    def close(self) -> None: ...

    def commit(self, transaction: nft.Transaction) -> tuple[nft.Refusal, ...]: ...

    def tables(self) -> list[nft.TableInfo]: ...

    def chains(self, table: str) -> list[nft.ChainInfo]: ...

    def rules(self, table: str) -> list[nft.RuleInfo]: ...

    def sets(self, table: str) -> list[nft.SetInfo]: ...

    def element_lists(self, table: str, name: str) -> list[bytes]: ...

    def stream_elements(self, table: str, name: str) -> Iterator[bytes]: ...

    def element_runs(
        self, table: str, name: str, runs: Sequence[Sequence[bytes]]
    ) -> list[list[bytes]]: ...

    def objects(self, table: str) -> list[nft.ObjectInfo]: ...

    def flowtables(self, table: str) -> list[nft.ObjectInfo]: ...

    def wait_for_readers(self) -> None: ...


class Nftables:
    """nf_tables of one family in the network namespace in which this object was made."""

    def __init__(self, family: int) -> None:
        self.family = family
        self._socket = NetlinkSocket(NETLINK_NETFILTER)
        self._socket.reserve_replies(KEYS_PER_CALL * _REPLY_BYTES)
        _OPEN.add(self)

    def __enter__(self) -> Nftables:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. Harmless when repeated."""
        _OPEN.discard(self)
        self._socket.close()

    @property
    def port_id(self) -> int:
        """The address by which the kernel names the author of what this object changes."""
        return self._socket.port_id

    def commit(self, transaction: nft.Transaction) -> tuple[nft.Refusal, ...]:
        """Execute the transaction. Return the refusals: if there are any, nothing took effect."""
        return refusals_of(transaction, self._socket.transact(transaction.pack()))

    def check(self, transaction: nft.Transaction) -> tuple[nft.Refusal, ...]:
        """Return what `commit` would return, without changing anything."""
        failures = self._socket.transact(transaction.pack(is_dry_run=True))
        return refusals_of(transaction, failures)

    def _dump(self, kind: int, body: bytes, what: str) -> list[Message]:
        return self._socket.dump(nft.SUBSYSTEM | kind, codec.nfgen(self.family) + body, what=what)

    def tables(self) -> list[nft.TableInfo]:
        """All tables of the family."""
        return [nft.parse_table(m) for m in self._dump(nft.GETTABLE, b"", "list tables")]

    def chains(self, table: str) -> list[nft.ChainInfo]:
        """All chains of a table, or none if there is no such table."""
        found = (nft.parse_chain(m) for m in self._dump(nft.GETCHAIN, b"", "list chains"))
        return [chain for chain in found if chain.table == table]

    def has_chain(self, table: str, name: str) -> bool:
        """Is there a chain of this name? Nothing is listed."""
        body = codec.nfgen(self.family) + nft.chain_body(table, name)
        try:
            self._socket.request(nft.SUBSYSTEM | nft.GETCHAIN, body, what=f"find chain {name}")
        except KernelError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True

    def base_chains(self) -> list[tuple[int, nft.ChainInfo]]:
        """The chains that packets of this family enter by themselves, each with its family.

        That is `NFPROTO_INET` for tables of both families.
        """
        body = codec.nfgen(nft.NFPROTO_UNSPEC)
        dumped = self._socket.dump(nft.SUBSYSTEM | nft.GETCHAIN, body, what="list base chains")
        families = (self.family, nft.NFPROTO_INET)
        found = ((m.body[0], nft.parse_chain(m)) for m in dumped if m.body[0] in families)
        return [(family, chain) for family, chain in found if chain.hook is not None]

    def rules(self, table: str) -> list[nft.RuleInfo]:
        """All rules of a table, in order within each chain."""
        dumped = self._dump(nft.GETRULE, nft.rules_reference(table), f"list rules of {table}")
        found = (nft.parse_rule(m) for m in dumped)
        return [rule for rule in found if rule.table == table]

    def sets(self, table: str) -> list[nft.SetInfo]:
        """All sets and maps of a table."""
        dumped = self._dump(nft.GETSET, nft.set_reference(table), f"list sets of {table}")
        found = (nft.parse_set(m) for m in dumped)
        return [spec for spec in found if spec.table == table]

    def element_lists(self, table: str, name: str) -> list[bytes]:
        """The packed element lists of one set, one for each message of the dump."""
        body = nft.elements_reference(table, name)
        dumped = self._dump(nft.GETSETELEM, body, f"list elements of {table}/{name}")
        return [nft.parse_element_list(message) for message in dumped]

    def stream_elements(self, table: str, name: str) -> Iterator[bytes]:
        """The same one by one. While the set changes, some may be missing or come twice."""
        body = codec.nfgen(self.family) + nft.elements_reference(table, name)
        what = f"list elements of {table}/{name}"
        dumped = self._socket.stream(nft.SUBSYSTEM | nft.GETSETELEM, body, what=what)
        return (nft.parse_element_list(message) for message in dumped)

    def elements(self, table: str, name: str) -> list[nft.ElementInfo]:
        """The elements of one set, parsed one by one."""
        lists = self.element_lists(table, name)
        return [found for listed in lists for found in nft.parse_elements(listed)]

    def element_runs(
        self, table: str, name: str, runs: Sequence[Sequence[bytes]]
    ) -> list[list[bytes]]:
        """Ask for keys instead of listing: of each run the elements up to the first missing one.

        Takes a few microseconds for a key, whatever the size of the set. A run has at most
        `KEYS_PER_CALL` keys, packed by `key_element`. The elements are packed like those of
        `element_lists`.
        """
        reference = nft.elements_reference(table, name)
        head = codec.nfgen(self.family) + reference
        found: list[list[bytes]] = [[] for _ in runs]
        for start, part in _calls(runs):
            asked = [head + nft.elements_list(run) for run in part]
            first, replies = self._socket.ask(nft.SUBSYSTEM | nft.GETSETELEM, asked)
            for reply in replies:
                place = codec.sequence_number(reply) - first
                listed = nft.found_element(reply, reference)
                if listed is None:
                    _raise_unless_missing(reply, f"elements of {table}/{name}")
                elif 0 <= place < len(part):
                    found[start + place].append(listed)
        return found

    def objects(self, table: str) -> list[nft.ObjectInfo]:
        """The named counters, quotas and so on of a table."""
        dumped = self._dump(nft.GETOBJ, nft.object_reference(table), f"list objects of {table}")
        return [found for m in dumped if (found := nft.parse_object(m)).table == table]

    def flowtables(self, table: str) -> list[nft.ObjectInfo]:
        """The flowtables of a table."""
        body = nft.object_reference(table)
        dumped = self._dump(nft.GETFLOWTABLE, body, f"list flowtables of {table}")
        return [found for m in dumped if (found := nft.parse_flowtable(m)).table == table]

    def wait_for_readers(self) -> None:
        """Return when no packet is under way any more that may have read what is replaced now."""
        wait_for_readers()


def _raise_unless_missing(packed: bytes, what: str) -> None:
    """Raise what the kernel replied with, unless that is only that a key is missing."""
    for reply in codec.iter_messages(packed):
        if reply.type == codec.NLMSG_ERROR:
            failure = codec.parse_failure(reply)
            if failure.errno not in (0, errno.ENOENT):
                raise kernel_error(failure.errno, what, failure.text)


def _calls(runs: Sequence[Sequence[bytes]]) -> Iterator[tuple[int, Sequence[Sequence[bytes]]]]:
    """Runs of at most `KEYS_PER_CALL` keys together, each part with the place of its first."""
    start, keys = 0, 0
    for place, run in enumerate(runs):
        if keys and keys + len(run) > KEYS_PER_CALL:
            yield start, runs[start:place]
            start, keys = place, 0
        keys += len(run)
    if keys:
        yield start, runs[start:]


UNUSABLE = frozenset((errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.EAFNOSUPPORT))
"""Errors of a kernel that has no nf_tables, or not for the family: there is nothing in it."""


def refusals_of(
    transaction: nft.Transaction, failures: Iterable[Failure]
) -> tuple[nft.Refusal, ...]:
    """The kernel's failures in terms of the transaction's labels."""
    return tuple(_refusal(transaction.labels, failure) for failure in failures)


def _refusal(labels: Sequence[str], failure: Failure) -> nft.Refusal:
    position = failure.seq - 1
    label = labels[position] if 0 <= position < len(labels) else "transaction"
    reason = failure.text or os.strerror(failure.errno)
    return nft.Refusal(label, failure.errno, reason, position, failure.offset)


def raise_refusals(refusals: Sequence[nft.Refusal]) -> None:
    """Raise the first refusal, if any, as a `KernelError` that names the object."""
    if refusals:
        first = refusals[0]
        raise kernel_error(first.errno, first.label, first.text)


def open_tracer() -> NetlinkMonitor:
    """Subscribe to the traces of marked packets."""
    return NetlinkMonitor(NETLINK_NETFILTER, (traces.NFNLGRP_NFTRACE,))


_OPEN: set[Nftables] = set()


def own_ports() -> Collection[int]:
    """The port ids under which this process changes nf_tables, of all families."""
    return {opened.port_id for opened in _OPEN}


def open_monitor() -> NetlinkMonitor:
    """Subscribe to all nf_tables changes but those that this process makes.

    That is, by what is open now. `skip_authors` is there for what is opened later.
    """
    return NetlinkMonitor(NETLINK_NETFILTER, (nft.NFNLGRP_NFTABLES,), skip_authors=own_ports())
