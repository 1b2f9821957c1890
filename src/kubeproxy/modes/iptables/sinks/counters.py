"""The accounting objects that rules of this mode feed: keep them there, and read them.

A rule that names an object which does not exist is refused, and deleting all objects is one
command of the `nfacct` program. So they are created at start and again before every full read. A
kernel without accounting objects gets the same rules without counting (`Features`).
"""

from __future__ import annotations

from kubeproxy.errors import KernelError
from kubeproxy.kernel.nfacct.table import Nfacct
from kubeproxy.logs import get_logger
from kubeproxy.modes.iptables import names

logger = get_logger(__name__)


def are_counters_supported() -> bool:
    """Does this kernel have accounting objects?"""
    try:
        with Nfacct() as nfacct:
            return nfacct.is_supported()
    except KernelError:  # without nfnetlink there is not even a socket
        return False


def ensure_counters() -> frozenset[str]:
    """Create those of our counters that are missing. Return which there are now."""
    existing = set()
    for name in (names.INVALID_COUNTER, names.LOCALHOST_COUNTER):
        try:
            with Nfacct() as nfacct:
                nfacct.ensure(name)
            existing.add(name)
        except KernelError as error:
            logger.error(error, "Failed to ensure nfacct counter", counter=name)
    return frozenset(existing)


def packets_of(counter: str) -> int | None:
    """Packets counted so far, or None if that cannot be read now."""
    try:
        with Nfacct() as nfacct:
            found = nfacct.find(counter)
    except KernelError:
        return None
    return None if found is None else found.packets
