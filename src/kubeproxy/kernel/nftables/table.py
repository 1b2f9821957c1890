"""A socket that speaks nf_tables: commits, dry runs, dumps, and news of other people's changes.

Promise: what a batch holds happens as a whole or not at all, inside the call; dumps are consistent.
Leaves to others: what the messages say (`nft`).
"""

from collections.abc import Sequence
from typing import Protocol

from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import Message, attr_str, be, iter_attrs, parse_attrs
from kubeproxy.kernel.netlink.socket import (
    NETLINK_NETFILTER,
    NetlinkMonitor,
    NetlinkSocket,
    kernel_error,
)
from kubeproxy.kernel.nftables import wire as nft


class NftHandle(Protocol):
    """What a mode needs of nf_tables: the socket below, or a fake that interprets batches."""

    @property
    def port_id(self) -> int: ...

    def close(self) -> None: ...

    def commit(self, batch: nft.Batch) -> tuple[nft.Refusal, ...]: ...

    def tables(self) -> list[nft.TableInfo]: ...

    def chains(self, table: str) -> list[nft.ChainInfo]: ...

    def rules(self, table: str) -> list[nft.RuleInfo]: ...

    def sets(self, table: str) -> list[nft.SetInfo]: ...

    def element_lists(self, table: str, name: str) -> list[bytes]: ...

    def elements(self, table: str, name: str) -> list[nft.ElementInfo]: ...


class NftSocket:
    """A netlink socket that speaks nf_tables for one family."""

    def __init__(self, family: int) -> None:
        self.family = family
        self._socket = NetlinkSocket(NETLINK_NETFILTER)

    def __enter__(self) -> "NftSocket":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back; harmless when repeated."""
        self._socket.close()

    @property
    def port_id(self) -> int:
        """The address the kernel names as author of what this socket changed."""
        return self._socket.port_id

    def commit(self, batch: nft.Batch) -> tuple[nft.Refusal, ...]:
        """Carry the batch out; when something was refused, nothing happened."""
        return batch.refusals(self._socket.transact(batch.pack()))

    def check(self, batch: nft.Batch) -> tuple[nft.Refusal, ...]:
        """Dry run: what `commit` would answer, without changing anything."""
        return batch.refusals(self._socket.transact(batch.pack(is_dry_run=True)))

    def _dump(self, kind: int, body: bytes, what: str) -> list[Message]:
        return self._socket.dump(nft.SUBSYSTEM | kind, codec.nfgen(self.family) + body, what=what)

    def tables(self) -> list[nft.TableInfo]:
        """All tables of the family."""
        return [nft.parse_table(m) for m in self._dump(nft.GETTABLE, b"", "list tables")]

    def chains(self, table: str) -> list[nft.ChainInfo]:
        """All chains of a table; none if there is no such table."""
        found = (nft.parse_chain(m) for m in self._dump(nft.GETCHAIN, b"", "list chains"))
        return [chain for chain in found if chain.table == table]

    def rules(self, table: str) -> list[nft.RuleInfo]:
        """All rules of a table, in order within each chain."""
        dumped = self._dump(nft.GETRULE, attr_str(1, table), f"list rules of {table}")
        found = (nft.parse_rule(m) for m in dumped)
        return [rule for rule in found if rule.table == table]

    def sets(self, table: str) -> list[nft.SetInfo]:
        """All sets and maps of a table."""
        dumped = self._dump(nft.GETSET, attr_str(1, table), f"list sets of {table}")
        found = (nft.parse_set(m) for m in dumped)
        return [spec for spec in found if spec.table == table]

    def element_lists(self, table: str, name: str) -> list[bytes]:
        """The packed element lists of one set, one for each message of the dump."""
        body = nft.reference(table, name)
        dumped = self._dump(nft.GETSETELEM, body, f"list elements of {table}/{name}")
        return [parse_attrs(m.body, 4).get(3, b"") for m in dumped]

    def elements(self, table: str, name: str) -> list[nft.ElementInfo]:
        """The elements of one set, parsed one by one."""
        lists = self.element_lists(table, name)
        return [nft.parse_element(raw) for listed in lists for _, raw in iter_attrs(listed)]

    def generation(self) -> int:
        """A number that grows with every committed transaction of the namespace."""
        what = "read generation"
        replies = self._socket.request(nft.SUBSYSTEM | nft.GETGEN, codec.nfgen(0), what=what)
        return be(parse_attrs(replies[0].body, 4)[1])


def raise_refusals(refusals: Sequence[nft.Refusal]) -> None:
    """Turn a refused batch into the exception of its first refusal, naming the object."""
    if refusals:
        first = refusals[0]
        raise kernel_error(first.errno, first.label, first.text)


def open_monitor(author: int) -> NetlinkMonitor:
    """News of all nf_tables changes but those made by the socket whose port id is `author`."""
    return NetlinkMonitor(NETLINK_NETFILTER, (nft.MONITOR_GROUP,), skip_author=author)
