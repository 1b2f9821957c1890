"""Runs inside the user-mode kernel: a proxy in ipvs mode whose calls fail, or are its last."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.cut_proxy import cut_everywhere
from tests.support.scarce import fail_everywhere

from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyBackend
from kubeproxy.modes.ipvs.check import check
from kubeproxy.modes.ipvs.mode import IpvsBackend
from kubeproxy.modes.ipvs.options import Options


def cut(step: int) -> object:
    """What went wrong. The modules are there first, as with a proxy that starts."""
    asyncio.run(check([Family.IPV4], Options()))
    return cut_everywhere(_create, _rules, step=step)


def fail(step: int) -> object:
    """What went wrong where calls to netlink found no buffer space."""
    asyncio.run(check([Family.IPV4], Options()))
    return fail_everywhere(_create, _rules, step=step)


def _create() -> AnyBackend:
    return IpvsBackend(Family.IPV4, Options())


def _rules() -> list[str]:
    """Virtual and real servers, sets, bound addresses, and rules without counters of packets."""
    saved = [re.sub(r"\[\d+:\d+\]", "", line) for line in _output("iptables-save")]
    return [
        *sorted(_servers()),
        *sorted(re.sub(r"initval \S+", "", line) for line in _output("ipset", "save")),
        *sorted(re.findall(r"inet \S+", "\n".join(_output("ip", "address")))),
        *(line for line in saved if not line.startswith("#")),
    ]


def _servers() -> Iterator[str]:
    """Each virtual server, and each real server with its virtual one; the table has no order."""
    server = ""
    for line in Path("/proc/net/ip_vs").read_text().splitlines():
        if not line.startswith(" "):
            server = line
        yield line if line is server else f"{server} {line}"


def _output(*argv: str) -> list[str]:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
