"""Netfilter's accounting objects: named packet counters that iptables rules can feed.

Why: rules count packets by naming such an object, and the metrics read it, without the `nfacct`
program. Promise: a missing counter is no error, a kernel without accounting objects is one.
Leaves to others: which counters, and what they count.
"""

from __future__ import annotations

import errno

from kubeproxy.errors import KernelError
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from kubeproxy.kernel.nfacct.wire import (
    NFNL_MSG_ACCT_GET,
    NFNL_MSG_ACCT_NEW,
    Counter,
    format_name,
    parse_counter,
)

_PROBE_NAME = "IMayExist"


class Nfacct:
    """The counters of the network namespace in which this object was made."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(NETLINK_NETFILTER)

    def __enter__(self) -> Nfacct:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def is_supported(self) -> bool:
        """Does this kernel have accounting objects?"""
        try:
            self.find(_PROBE_NAME)
        except KernelError:
            return False
        return True

    def find(self, name: str) -> Counter | None:
        """The counter of this name, or None. Raises KernelError if there are no counters at all."""
        body = format_name(name)
        try:
            replies = self._socket.request(NFNL_MSG_ACCT_GET, body, what=f"nfacct get {name}")
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return parse_counter(replies[0].body) if replies else None

    def ensure(self, name: str) -> None:
        """Create the counter unless it exists; one that exists keeps its numbers."""
        if self.find(name) is not None:
            return
        body = format_name(name)
        try:
            self._socket.request(
                NFNL_MSG_ACCT_NEW, body, codec.NLM_F_CREATE, what=f"nfacct add {name}"
            )
        except KernelError as error:
            # Another process created it meanwhile. The kernel answers EBUSY then, and EEXIST only
            # to requests with NLM_F_EXCL.
            if error.errno not in (errno.EBUSY, errno.EEXIST):
                raise
