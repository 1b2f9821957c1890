"""Our IPVS, ipset and link messages against a real kernel, seen through its own tools."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kpctl.places.guest import GuestError
from kpctl.places.uml import UserModeKernel

GUEST = Path(__file__).with_name("guest_kernel.py")

pytestmark = pytest.mark.uml


def test_every_type_of_set(uml: UserModeKernel) -> None:
    """Entries are added and deleted in bulk, twice each, and read back as the same values."""
    assert uml.call(GUEST, "sets") == {
        "refused": [],
        "same": dict.fromkeys(
            (
                *("A-IP", "A-IP6", "A-IPPORT", "A-IPPORTIP"),
                *("A-NET", "A-HOST", "A-NET6", "A-PORT", "A-COUNT"),
            ),
            True,
        ),
        "text": [
            "add A-IP 10.0.0.1",
            "add A-IP6 fd00::1",
            "add A-IPPORT 10.0.0.1,sctp:80",
            "add A-IPPORTIP 10.0.0.1,udp:53,10.0.0.1",
            "add A-NET 10.0.0.1,tcp:80,10.1.0.0/16",
            "add A-HOST 10.0.0.1,tcp:80,10.1.0.7",
            "add A-NET6 fd00::1,tcp:80,fd01::/64",
            "add A-PORT 30080",
            "add A-COUNT 10.0.0.1,tcp:80 packets 0 bytes 0",
        ],
        "left": [],
        "destroyed": [True] * 9 + [False],
        "missing": True,
    }


def test_one_bad_entry_does_not_stop_the_others(uml: UserModeKernel) -> None:
    assert uml.call(GUEST, "refused_entries") == {
        "refused": [True],
        "count": 1000,
        "wrong_type": "create set NETS: there is one of another type; "
        "remove it (ipset destroy NETS)",
    }


def test_virtual_and_real_servers(uml: UserModeKernel) -> None:
    answer = uml.call(GUEST, "servers")
    assert isinstance(answer, dict)
    # The kernel lists virtual servers in the order of a hash with a random seed.
    answer["services"].sort(key=lambda service: int(service["protocol"]))
    if answer["shown"][0].startswith("UDP"):
        answer["shown"] = answer["shown"][2:] + answer["shown"][:2]
    assert answer == {
        "services": [
            {
                "protocol": 6,
                "address": "10.96.0.1",
                "port": 80,
                "scheduler": "rr",
                "flags": 0,
                "timeout_seconds": 0,
                "firewall_mark": 0,
            },
            {
                "protocol": 17,
                "address": "fd00::1",
                "port": 53,
                "scheduler": "mh",
                "flags": 0x11,
                "timeout_seconds": 300,
                "firewall_mark": 0,
            },
        ],
        "v4": [_destination("10.244.0.2", 8080, 0), _destination("10.244.0.1", 8080, 1)],
        "v6": [_destination("fd00:244::1", 5353, 1)],
        "none": [],
        "refusals": [[2, errno.EEXIST], [5, errno.ENOENT]],
        "shown": [
            "TCP 0A600001:0050 rr",
            "-> 0AF40002:1F90 Masq 0 0 0",
            "-> 0AF40001:1F90 Masq 1 0 0",
            "UDP [fd00:0000:0000:0000:0000:0000:0000:0001]:0035 mh persistent 30000 80000000",
            "-> [fd00:0244:0000:0000:0000:0000:0000:0001]:14E9 Masq 1 0 0",
        ],
        "timeouts": {"tcp": 900, "tcp_fin": 120, "udp": 17},
    }


def _destination(address: str, port: int, weight: int) -> dict[str, object]:
    return {
        "address": address,
        "port": port,
        "weight": weight,
        "forward": 0,
        "active": 0,
        "inactive": 0,
    }


def test_the_dummy_link_stays_down_and_carries_both_families(uml: UserModeKernel) -> None:
    assert uml.call(GUEST, "dummy") == {
        "same": True,
        "kind": "dummy",
        "addresses": ["10.96.0.1/32", "fd00::1/128"],
        "down": True,
        "gone": True,
    }


def test_a_failure_in_the_guest_comes_back_with_its_words(uml: UserModeKernel) -> None:
    with pytest.raises(GuestError, match="AttributeError"):
        uml.call(GUEST, "no_such_function")
