"""nfacct messages: named packet counters as bytes, both directions. Pure.

Constants have the names of the kernel's `nfnetlink_acct.h`. Leaves to others: sending
(`kernel.nfacct.table`).
"""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.kernel.netlink import codec

NFNL_SUBSYS_ACCT = 7
NFNL_MSG_ACCT_NEW = NFNL_SUBSYS_ACCT << 8 | 0
NFNL_MSG_ACCT_GET = NFNL_SUBSYS_ACCT << 8 | 1

NFACCT_NAME = 1
NFACCT_PKTS = 2
NFACCT_BYTES = 3

NFACCT_NAME_MAX = 32
"""The length of a name with its final NUL."""

_AF_NETLINK = 16
"""Stands where other families have AF_INET: a counter belongs to no address family."""
_NFGEN_BYTES = 4


class Counter(Struct, frozen=True, gc=False):
    """One accounting object as read."""

    name: str
    packets: int
    bytes: int


def format_name(name: str) -> bytes:
    """The body of a request about one counter. Raises ValueError if its name is too long."""
    longest = NFACCT_NAME_MAX - 1
    if len(name) > longest:
        raise ValueError(f"the counter name {name!r} is longer than {longest} characters")
    return codec.nfgen(_AF_NETLINK) + codec.attr_str(NFACCT_NAME, name)


def parse_counter(body: bytes) -> Counter:
    """The counter in the body of a reply."""
    attributes = codec.parse_attrs(body, _NFGEN_BYTES)
    return Counter(
        codec.text(attributes.get(NFACCT_NAME, b"")),
        codec.be(attributes.get(NFACCT_PKTS, b"")),
        codec.be(attributes.get(NFACCT_BYTES, b"")),
    )
