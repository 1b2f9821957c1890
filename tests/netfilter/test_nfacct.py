"""Accounting objects over netlink."""

from __future__ import annotations

import socket
import subprocess

import pytest

from kpctl.places.scratch import scratch_namespace
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.nfacct import wire
from kubeproxy.kernel.nfacct.table import Nfacct


def test_a_request_names_the_counter() -> None:
    """The generic header without family, then the name with its NUL."""
    assert wire.format_name("abc") == b"\x10\0\0\0" + codec.attr_str(1, "abc")


def test_an_answer_is_read() -> None:
    """Numbers are in network order."""
    body = codec.nfgen(16) + codec.attr_str(1, "x") + codec.attr_be64(2, 7) + codec.attr_be64(3, 99)
    assert wire.parse_counter(body) == wire.Counter("x", 7, 99)


def test_names_have_a_limit() -> None:
    """The kernel would cut a longer one."""
    with pytest.raises(ValueError, match="longer than 31"):
        wire.format_name("x" * 32)


@pytest.mark.kernel
def test_counters_are_made_once_and_count() -> None:
    """A counter exists after it is ensured, keeps its numbers, and a rule feeds it."""
    with scratch_namespace(), Nfacct() as nfacct:
        assert nfacct.is_supported()
        assert nfacct.find("seen") is None
        nfacct.ensure("seen")
        rule = ["-A", "OUTPUT", "-o", "lo", "-m", "nfacct", "--nfacct-name", "seen"]
        subprocess.run(["iptables", *rule], check=True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for _ in range(3):
                client.sendto(b"hello", ("127.0.0.1", 9))
        nfacct.ensure("seen")
        found = nfacct.find("seen")
        assert found is not None
        assert found.name == "seen"
        assert found.packets >= 3
