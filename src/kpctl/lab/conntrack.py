"""Flows that the kernel of a lab's node still tracks, forgotten."""

from __future__ import annotations

import socket

from kubeproxy.errors import KernelError
from kubeproxy.kernel.conntrack.wire import IPCTNL_MSG_CT_DELETE
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.socket import NETLINK_NETFILTER, NetlinkSocket


def forget_flows() -> None:
    """Empty the conntrack table of the current network namespace, in all families.

    A connection from a port whose former connection is still tracked is treated as that one was:
    if it met no rule then, it meets none now, and is lost however good the rules are.
    """
    netlink = NetlinkSocket(NETLINK_NETFILTER)
    try:
        body = codec.nfgen(socket.AF_UNSPEC)
        seq = netlink.reserve(1)
        failures = netlink.transact(
            codec.message(IPCTNL_MSG_CT_DELETE, codec.NLM_F_REQUEST, seq, body)
        )
    finally:
        netlink.close()
    if failures:
        raise KernelError(f"the conntrack table cannot be emptied: {failures[0].text}")
