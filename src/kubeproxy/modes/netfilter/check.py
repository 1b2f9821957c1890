"""Whether iptables can be used on this host, for every mode that needs it.

Promise: that it cannot be used at all is worded as upstream words it; a match or target that the
kernel has not got is logged, with its module. Each mode lists rules that use what it needs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from kubeproxy.errors import Busy, KernelError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.logs import get_logger
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.sinks.xtables import Xtables

logger = get_logger(__name__)

_CHAIN = "KUBE-PROXY-CHECK"
_ATTEMPTS, _PAUSE_SECONDS = 2, 1.0
_MISSING = re.compile(r"Extension (\S+) revision \d+ not supported, missing kernel module")
_MODULES = {
    "DNAT": "xt_nat",
    "MARK": "xt_mark",
    "REJECT": "ipt_REJECT and ip6t_REJECT",
}
"""Modules that are not named after what they provide."""
_NAT = (
    "-m comment --comment check -j RETURN",
    "-m mark --mark 0x1/0x1 -j RETURN",
    "-m addrtype --dst-type LOCAL -j RETURN",
    "-j MARK --set-xmark 0x1/0x1",
    "-j MASQUERADE",
)
_FILTER = ("-m conntrack --ctstate NEW -j REJECT",)
"""What every mode with iptables needs."""


async def require_iptables(
    family: Family, options: ToolOptions, nat_rules: Sequence[str] = ()
) -> None:
    """Raise Unsupported with the reason unless this family can be programmed.

    Raises Busy if that cannot be found out now. `nat_rules` are rules that need what the mode needs
    beside what all need.
    """
    tables = Xtables(family, options)
    try:
        messages = await _rehearse(tables, _sample(nat_rules))
    except Busy:
        raise
    except KernelError as error:
        raise Unsupported(f"iptables is not available on this host : {error}") from error
    report_missing(messages)


async def _rehearse(tables: Xtables, text: str) -> str:
    """What the tool says about these rules, the last time if it misses something every time.

    A module that another process is just loading is not found yet.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            messages = await tables.rehearse(text)
        except Busy:
            raise
        except KernelError:
            # Upstream lists a chain, and a table that cannot be listed is reported in its words.
            await tables.require_chain("nat", "POSTROUTING")
            raise
        if not _MISSING.search(messages):
            return messages
        await asyncio.sleep(_PAUSE_SECONDS)
    return await tables.rehearse(text)


def report_missing(messages: str) -> None:
    """Log the extensions that the tool could not find in the kernel.

    That is no reason to end: most Services need none of them, and those that do are refused one by
    one, with the tool's message.
    """
    if reason := missing_extensions(messages):
        logger.error(reason, "Services that need this will be refused")


def missing_extensions(messages: str) -> str:
    """What the kernel has not got, by the messages of the tool, and the remedy; empty if all is."""
    missing = dict.fromkeys(_MISSING.findall(messages))
    if not missing:
        return ""
    modules = ", ".join(_MODULES.get(name, f"xt_{name}") for name in missing)
    return (
        f"the kernel has no {', '.join(missing)} for iptables: "
        f"install or load the kernel modules {modules}"
    )


def _sample(nat_rules: Sequence[str]) -> str:
    """Restore input that uses every match and target once."""
    tables = {"nat": (*_NAT, *nat_rules), "filter": _FILTER}
    lines: list[str] = []
    for table, rules in tables.items():
        appended = (f"-A {_CHAIN} {rule}" for rule in rules)
        lines += [f"*{table}", f":{_CHAIN} - [0:0]", *appended, "COMMIT"]
    return "".join(f"{line}\n" for line in lines)
