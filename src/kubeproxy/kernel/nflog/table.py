"""Packets that the kernel logs to a group of nfnetlink_log."""

from __future__ import annotations

from kubeproxy.kernel.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from kubeproxy.kernel.nflog import wire

_COPY_BYTES = 128
"""Enough for the headers."""


class NetfilterLog:
    """One group, bound to this process in the network namespace in which this object was made."""

    def __init__(self, group: int = 0) -> None:
        """Raises KernelError, for instance if another process has bound the group."""
        self._socket = NetlinkSocket(NETLINK_NETFILTER)
        self._socket.request(
            wire.SUBSYSTEM | wire.NFULNL_MSG_CONFIG,
            wire.bind_body(group, _COPY_BYTES),
            what=f"bind netfilter log group {group}",
        )

    def close(self) -> None:
        """Close the socket, which unbinds the group. Harmless when repeated."""
        self._socket.close()

    def receive(self, timeout_seconds: float) -> list[wire.LoggedPacket]:
        """The packets of the next datagram, or none if none comes in time."""
        found = map(wire.parse_packet, self._socket.receive(timeout_seconds))
        return [packet for packet in found if packet is not None]
