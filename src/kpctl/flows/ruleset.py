"""The rules on a node of the lab, ours and foreign, as the usual tools show them.

Foreign rules are put into the very tables and base chains the modes use, and must never change.
`leftovers` are lines of ours that a tool still shows.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress

from kpctl.flows.upstream import PREFIX
from kpctl.lab.namespaces import Namespaces
from kubeproxy.facts.node import SERVICE_LINK

_IPTABLES = ("iptables", "ip6tables")
_FOREIGN_XTABLES = """*mangle
:FOREIGN-MARKS - [0:0]
-A FORWARD -j FOREIGN-MARKS
-A FOREIGN-MARKS -p tcp -m tcp --dport 65001 -j MARK --set-xmark 0x1/0x1
COMMIT
*nat
:FOREIGN-NAT - [0:0]
-A PREROUTING -p tcp -m tcp --dport 65002 -j FOREIGN-NAT
-A FOREIGN-NAT -p tcp -m tcp --dport 65002 -j REDIRECT --to-ports 65003
-A POSTROUTING -m mark --mark 0x10000/0x10000 -j MASQUERADE
COMMIT
*filter
:FOREIGN-FILTER - [0:0]
-A INPUT -p tcp -m tcp --dport 65004 -j FOREIGN-FILTER
-A FORWARD -p tcp -m tcp --dport 65004 -j FOREIGN-FILTER
-A FOREIGN-FILTER -p tcp -m tcp --dport 65004 -j DROP
COMMIT
"""
_FOREIGN_NFT = """
table inet foreign {
  set visitors { type ipv4_addr; elements = { 192.0.2.99 } }
  map ports { type inet_service : verdict; elements = { 65005 : drop } }
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    tcp dport 65006 redirect to :65007
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    tcp dport vmap @ports
  }
}
"""
_STAYS = "KUBE-FIREWALL"
"""Upstream leaves this chain to the kubelet, which shares it."""

_TRIES = 5
"""Of a tool, before its failure counts."""
_OWN_CHAINS = {
    "iptables": ("KUBE-SVC-", "KUBE-SEP-", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-CANARY"),
    "ipvs": ("KUBE-IPVS-", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT"),
    "userspace": ("KUBE-PORTALS-", "KUBE-NODEPORT-"),
}
"""Chains by which a mode is known."""
_SET_ASIDE = "-OLD"
"""Ends the names of chains that a mode had under names of the one that took over."""
_PROTOCOLS = ("TCP", "UDP", "SCTP")

_COUNTERS = re.compile(r" \[\d+:\d+\]$")


class Ruleset:
    """Rules on one node."""

    def __init__(self, namespaces: Namespaces, node: str) -> None:
        self._namespaces = namespaces
        self._node = node

    def install_foreign(self) -> None:
        for tool in _IPTABLES:
            self._run([f"{tool}-restore", "-w", "--noflush"], _FOREIGN_XTABLES)
        self._run(["nft", "-f", "-"], _FOREIGN_NFT)

    def remove_foreign(self) -> None:
        for tool in _IPTABLES:
            for line in self._xtables(tool):
                if line.startswith("*"):
                    table = line[1:]
                elif line.startswith("-A") and "KUBE" not in line:
                    self._run([tool, "-w", "-t", table, "-D", *line.split()[1:]])
            for table, chain in (("mangle", "MARKS"), ("nat", "NAT"), ("filter", "FILTER")):
                self._run([tool, "-w", "-t", table, "-X", f"FOREIGN-{chain}"])
        self._run(["nft", "delete", "table", "inet", "foreign"])

    def foreign(self) -> tuple[str, ...]:
        """Everything that is not ours, in order."""
        found = [line for tool in _IPTABLES for line in self._xtables(tool) if "KUBE" not in line]
        return (*found, *self._run(["nft", "list", "table", "inet", "foreign"]).splitlines())

    def leftovers(self, mode: str = "", *, now: str = "", variant: str = "") -> tuple[str, ...]:
        """What is left of ours: of one mode after another (`now`) took over, or of all.

        `variant` is that of the iptables tools which the mode used, if it is not used now.
        """
        found: list[str] = []
        mode = mode.removeprefix(PREFIX)
        if mode in ("", "nftables"):
            tables = self._run(["nft", "list", "tables"]).splitlines()
            found += [line for line in tables if line.endswith(" kube-proxy")]
        if mode != "nftables":
            # Modes that use iptables share some chains, so only others tell that one was there.
            is_shared = now in _OWN_CHAINS and not variant
            words = (*_OWN_CHAINS[mode], _SET_ASIDE) if is_shared else ("KUBE-",)
            found += self._lines_with(words, variant)
        if mode in ("", "ipvs"):
            found += self._ipvs_lines()
        return tuple(found)

    def _lines_with(self, words: Sequence[str], variant: str = "") -> Iterator[str]:
        for tool in (f"{tool}-{variant}" if variant else tool for tool in _IPTABLES):
            for line in self._xtables(tool):
                if any(word in line for word in words) and _STAYS not in line:
                    yield f"{tool}: {line}"

    def _ipvs_lines(self) -> Iterator[str]:
        """The link that carries service addresses, and virtual servers."""
        links = self._run(["ip", "-brief", "link"]).splitlines()
        yield from (line for line in links if line.startswith(SERVICE_LINK))
        servers = self._run(["sh", "-c", "cat /proc/net/ip_vs 2>/dev/null || true"]).splitlines()
        yield from (line for line in servers if line.startswith(_PROTOCOLS))

    def _xtables(self, tool: str) -> Iterator[str]:
        """What the tool saves, without time stamps and counters."""
        for line in self._saved(f"{tool}-save").splitlines():
            if not line.startswith("#"):
                yield _COUNTERS.sub("", line)

    def _saved(self, tool: str) -> str:
        """Run the tool again if it fails: a set may go while it lists a rule that names the set."""
        for _ in range(_TRIES - 1):
            with suppress(AssertionError):
                return self._run([tool])
        return self._run([tool])

    def _run(self, argv: list[str], text: str = "") -> str:
        command = self._namespaces.command(self._node, argv)
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(argv)} on {self._node}: {done.stderr.strip()}")
        return done.stdout
