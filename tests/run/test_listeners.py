"""Who listens on a port, from the kernel's table of sockets."""

from __future__ import annotations

import os
import socket

from kubeproxy.kernel.listeners import listening_users, listens_for_root

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout"
LISTENS = "   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 7 1"
CONNECTED = (
    "   1: 0100007F:2809 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0  0 8 1"
)


def test_only_what_listens_counts() -> None:
    """A connection of root's to the port of another user shows the same local port."""
    assert list(listening_users([HEAD, LISTENS, CONNECTED], 10249)) == [1000]
    assert list(listening_users([HEAD, LISTENS, CONNECTED], 10250)) == []


def test_a_port_of_ours_is_found_in_both_families() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((address, 0), family=family) as server:
            assert os.fstat(server.fileno()).st_uid == os.geteuid()
            assert listens_for_root(server.getsockname()[1])
