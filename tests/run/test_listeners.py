"""Who listens on a port, from the kernel's table of sockets."""

from __future__ import annotations

import ipaddress
import os
import socket

import pytest

from kubeproxy.kernel import listeners as module
from kubeproxy.kernel.listeners import Listener, listeners, listens_for_root

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout"
LISTENS = "   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 7 1"
CONNECTED = (
    "   1: 0100007F:2809 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0  0 8 1"
)


def test_only_what_listens_counts() -> None:
    """A connection of root's to the port of another user shows the same local port."""
    assert list(listeners([HEAD, LISTENS, CONNECTED], 10249)) == [(bytes((127, 0, 0, 1)), 1000)]
    assert list(listeners([HEAD, LISTENS, CONNECTED], 10250)) == []


def test_addresses_are_read_in_both_families() -> None:
    """Words in the byte order of the machine; an IPv4 address may stand in its IPv6 form."""
    for shown, address in (
        ("00000000000000000000000001000000", "::1"),
        ("B80D0120000000000000000001000000", "2001:db8::1"),
        ("0000000000000000FFFF00000100007F", "127.0.0.1"),
    ):
        (found,) = listeners([LISTENS.replace("0100007F", shown)], 10249)
        assert found.address == ipaddress.ip_address(address).packed


@pytest.mark.parametrize(
    ("bound", "asked"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"),
     ("::1", "::1"), ("::", "::1"), ("127.0.0.1", "::ffff:127.0.0.1"),
     ("127.0.0.1", "127.0.0.01")],
)  # fmt: skip
def test_a_port_of_ours_is_found(bound: str, asked: str) -> None:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    is_dual = bound == "::"
    with socket.create_server((bound, 0), family=family, dualstack_ipv6=is_dual) as server:
        assert os.fstat(server.fileno()).st_uid == os.geteuid()
        assert listens_for_root(asked, server.getsockname()[1])


def test_our_port_of_another_address_is_not_meant() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        assert not listens_for_root("127.0.0.1", server.getsockname()[1])


def test_what_has_the_very_address_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one that is connected to, whoever has all other addresses."""
    shown = [Listener(bytes(16), 0), Listener(bytes((127, 0, 0, 1)), 1000)]
    monkeypatch.setattr(module, "_read", lambda name, port: shown)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not listens_for_root("127.0.0.1", 10249)
    assert listens_for_root("127.0.0.2", 10249)
