"""Runs inside the user-mode kernel: our clients against the kernel and its own tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kubeproxy.kernel.ipset.table import Ipset
from kubeproxy.kernel.ipset.wire import Entry, EntryChange, SetHead, SetType
from kubeproxy.kernel.ipvs import wire as ipvs
from kubeproxy.kernel.ipvs.table import Ipvs
from kubeproxy.kernel.ipvs.wire import Service, Timeouts
from kubeproxy.kernel.route.table import Route

BY_PORT_AND_TIME = ipvs.IP_VS_SVC_F_PERSISTENT | ipvs.IP_VS_SVC_F_SCHED_MH_PORT

SETS = {
    "A-IP": (SetHead(SetType.IP), Entry("10.0.0.1")),
    "A-IP6": (SetHead(SetType.IP, is_ipv6=True), Entry("fd00::1")),
    "A-IPPORT": (SetHead(SetType.IP_PORT), Entry("10.0.0.1", 132, 80)),
    "A-IPPORTIP": (SetHead(SetType.IP_PORT_IP), Entry("10.0.0.1", 17, 53, "10.0.0.1")),
    "A-NET": (SetHead(SetType.IP_PORT_NET), Entry("10.0.0.1", 6, 80, "10.1.0.0", 16)),
    "A-HOST": (SetHead(SetType.IP_PORT_NET), Entry("10.0.0.1", 6, 80, "10.1.0.7", 32)),
    "A-NET6": (
        SetHead(SetType.IP_PORT_NET, is_ipv6=True),
        Entry("fd00::1", 6, 80, "fd01::", 64),
    ),
    "A-PORT": (SetHead(SetType.PORT), Entry(port=30080)),
    "A-COUNT": (SetHead(SetType.IP_PORT, counts=True), Entry("10.0.0.1", 6, 80)),
}


def say(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def sets() -> object:
    """Every type of set: what `ipset` prints, and whether what we read is what we wrote."""
    with Ipset() as table:
        table.check()
        for name, (head, _) in SETS.items():
            table.create(name, head)
            table.create(name, head)
        changes = [EntryChange(name, entry, True) for name, (_, entry) in SETS.items()]
        refused = table.change(changes) + table.change(changes)
        same = {name: _reads_back(table, name) for name in SETS}
        text = say("ipset", "save")
        gone = table.change([change._replace(is_add=False) for change in changes * 2])
        left = say("ipset", "save")
        destroyed = [table.destroy(name) for name in (*SETS, "A-IP")]
        return {
            "refused": [*refused, *gone],
            "same": same,
            "text": [line for line in text.splitlines() if line.startswith("add")],
            "left": [line for line in left.splitlines() if line.startswith("add")],
            "destroyed": destroyed,
            "missing": table.find("A-IP") is None,
        }


def _reads_back(table: Ipset, name: str) -> bool:
    listed = table.find(name)
    head, entry = SETS[name]
    return listed is not None and listed.head == head and listed.entries == {entry}


def refused_entries() -> object:
    """Of many entries in one message only the bad ones are refused, and named."""
    with Ipset() as table:
        table.create("NETS", SetHead(SetType.IP_PORT_NET))
        good = [Entry("10.0.0.1", 6, port, "10.1.0.0", 16) for port in range(1, 1001)]
        bad = Entry("10.0.0.1", 6, 5000, "fd00::", 64)
        changes = [EntryChange("NETS", entry, True) for entry in (*good[:500], bad, *good[500:])]
        refused = table.change(changes)
        listed = table.find("NETS")
        wrong_type = _failure(lambda: table.create("NETS", SetHead(SetType.PORT)))
        return {
            "refused": [change.entry == bad for change, _ in refused],
            "count": len(listed.entries) if listed else 0,
            "wrong_type": wrong_type,
        }


def _failure(action: object) -> str:
    try:
        action()  # type: ignore[operator]
    except Exception as error:
        return str(error)
    return ""


def servers() -> object:
    """Virtual and real servers of both families: written, listed, and as the kernel shows them."""
    say("ip", "link", "set", "lo", "up")  # without any route IPVS refuses IPv4 real servers
    with Ipvs() as table:
        for service in (
            Service(6, "10.96.0.1", 80, "rr", 0, 0),
            Service(17, "fd00::1", 53, "mh", BY_PORT_AND_TIME, 300),
        ):
            table.create(service)
        v4 = ipvs.format_key(6, "10.96.0.1", 80)
        v6 = ipvs.format_key(17, "fd00::1", 53)
        bodies = [
            ipvs.format_destination(ipvs.IPVS_CMD_NEW_DEST, v4, "10.244.0.1", 8080, 1),
            ipvs.format_destination(ipvs.IPVS_CMD_NEW_DEST, v4, "10.244.0.2", 8080, 1),
            ipvs.format_destination(ipvs.IPVS_CMD_NEW_DEST, v4, "10.244.0.2", 8080, 1),
            ipvs.format_destination(ipvs.IPVS_CMD_SET_DEST, v4, "10.244.0.2", 8080, 0),
            ipvs.format_destination(ipvs.IPVS_CMD_NEW_DEST, v6, "fd00:244::1", 5353, 1),
            ipvs.format_destination_key(ipvs.IPVS_CMD_DEL_DEST, v4, "10.244.0.9", 1),
        ]
        refusals = [(r.place, r.failure.errno) for r in table.send(bodies)]
        shown = Path("/proc/net/ip_vs").read_text().splitlines()[3:]
        table.set_timeouts(Timeouts(0, 0, 17))
        return {
            "services": table.services(),
            "v4": table.destinations(6, "10.96.0.1", 80),
            "v6": table.destinations(17, "fd00::1", 53),
            "none": table.destinations(6, "10.96.0.2", 80),
            "refusals": refusals,
            "shown": [" ".join(line.split()) for line in shown],
            "timeouts": table.timeouts(),
        }


def dummy() -> object:
    """The dummy link and its addresses, of both families."""
    with Route() as route:
        link = route.ensure_dummy("kube-ipvs0")
        again = route.ensure_dummy("kube-ipvs0")
        assert route.change_host_addresses(link, add=("10.96.0.1", "fd00::1")) == []
        text = say("ip", "-o", "address", "show", "dev", "kube-ipvs0")
        state = say("ip", "-o", "link", "show", "dev", "kube-ipvs0")
        route.delete_link(link)
        return {
            "same": link == again,
            "kind": link.kind,
            "addresses": [line.split()[3] for line in text.splitlines()],
            "down": "state DOWN" in state,
            "gone": route.link("kube-ipvs0") is None,
        }
