"""Whether iptables can be used on this host, for every mode that needs it.

Promise: the error is worded as upstream words it.
"""

from __future__ import annotations

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.sinks.xtables import Xtables


async def require_iptables(family: Family, options: ToolOptions) -> None:
    """Raise Unsupported with the tool's own message unless this family can be programmed."""
    tables = Xtables(family, options)
    try:
        await tables.probe()
        await tables.require_chain("nat", "POSTROUTING")
    except KernelError as error:
        raise Unsupported(f"iptables is not available on this host : {error}") from error
