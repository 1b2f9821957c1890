"""Can iptables be used here? Asked by every mode that needs it, answered in upstream's words."""

from __future__ import annotations

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import ModeOptions
from kubeproxy.modes.netfilter.sinks.xtables import Xtables


async def require_iptables(family: Family, options: ModeOptions) -> None:
    """Raise Unsupported, with what the tool says, unless this family can be programmed."""
    tables = Xtables(family, lock_timeout_seconds=options.xtables_lock_timeout_seconds)
    try:
        await tables.probe()
        await tables.require_chain("nat", "POSTROUTING")
    except KernelError as error:
        raise Unsupported(f"iptables is not available on this host : {error}") from error
