"""Netfilter's accounting objects: named packet counters that iptables rules can feed.

Spoken over nfnetlink; the `nfacct` program is not needed. Promise: asking on a kernel without
them says "unsupported" rather than failing. Counters belong to the network namespace of the
calling thread. Leaves to others: which counters, and what they count.
"""

from __future__ import annotations

import errno

from msgspec import Struct

from kubeproxy.errors import KernelError
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

_SUBSYSTEM = 7
_NEW = _SUBSYSTEM << 8 | 0
_GET = _SUBSYSTEM << 8 | 1

_NAME = 1
_PACKETS = 2
_BYTES = 3

_FAMILY = 16
"""AF_NETLINK: the objects belong to no address family."""

MAX_NAME = 31
_PROBE_NAME = "IMayExist"


class Counter(Struct, frozen=True, gc=False):
    """One accounting object as read."""

    name: str
    packets: int
    bytes: int


def counter_request(name: str) -> bytes:
    """The body of a request about one counter."""
    if len(name) > MAX_NAME:
        raise ValueError(f"the counter name {name!r} is longer than {MAX_NAME} characters")
    return codec.nfgen(_FAMILY) + codec.attr_str(_NAME, name)


def parse_counter(body: bytes) -> Counter:
    """Read the kernel's answer."""
    attributes = codec.parse_attrs(body, 4)
    return Counter(
        codec.text(attributes.get(_NAME, b"")),
        codec.be(attributes.get(_PACKETS, b"")),
        codec.be(attributes.get(_BYTES, b"")),
    )


def find_counter(name: str) -> Counter | None:
    """The counter, or None if there is none of this name. Raises KernelError if unsupported."""
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        try:
            replies = netlink.request(_GET, counter_request(name), what=f"nfacct get {name}")
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
    return parse_counter(replies[0].body) if replies else None


def ensure_counter(name: str) -> None:
    """Make the counter exist; one that exists keeps its numbers."""
    if find_counter(name) is not None:
        return
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        try:
            netlink.request(
                _NEW, counter_request(name), codec.NLM_F_CREATE, what=f"nfacct add {name}"
            )
        except KernelError as error:
            if error.errno not in (errno.EBUSY, errno.EEXIST):
                raise


def is_supported() -> bool:
    """Does this kernel have accounting objects?"""
    try:
        find_counter(_PROBE_NAME)
    except KernelError:
        return False
    return True
