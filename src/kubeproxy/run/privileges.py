"""The capabilities that a mode needs, and what is missing of them.

Why: without a capability the kernel says "operation not permitted" in many ways, deep in the first
transaction and after the start has begun to change things. Promise: `require_privileges` names the
missing capability before anything is touched. What each mode needs was found by running it with
less; docs/privileges.md has the same table for people. Sysctls and modules need more than any of
this: they are the matter of `--init-only`.
"""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.errors import Unsupported
from kubeproxy.kernel.capabilities import BITS, Capabilities
from kubeproxy.logs import get_logger

logger = get_logger(__name__)


class Need(Struct, frozen=True):
    """A capability, the modes that use it, and what does not work without it."""

    name: str
    modes: tuple[str, ...]
    without: str
    is_required: bool = False


_TOOLS = ("iptables", "ipvs", "userspace")
NEEDS = (
    Need("NET_ADMIN", ("nftables", *_TOOLS), "nothing can be programmed", is_required=True),
    Need("NET_RAW", _TOOLS, "iptables-legacy cannot be used (iptables-nft can)"),
    Need("NET_BIND_SERVICE", ("userspace",), "ports below 1024 of the node are not served"),
)


def needed_capabilities(mode: str) -> tuple[str, ...]:
    """Return the names of what a mode may need once it runs."""
    return tuple(need.name for need in NEEDS if mode in need.modes)


def missing_privileges(mode: str, held: Capabilities | None) -> tuple[Need, ...]:
    """Return what a mode may need and the process has not. Unknown capabilities count as held."""
    effective = -1 if held is None else held.effective
    return tuple(
        need for need in NEEDS if mode in need.modes and not effective >> BITS[need.name] & 1
    )


def require_privileges(mode: str, held: Capabilities | None) -> None:
    """Raise Unsupported without a required capability. Log others that are missing."""
    for need in missing_privileges(mode, held):
        if need.is_required:
            raise Unsupported(
                f"the capability CAP_{need.name} is missing, without it {need.without}: run as "
                "root, or give it to the process (securityContext.capabilities of the container, "
                "CapabilityBoundingSet= of the systemd unit)"
            )
        logger.info("Running with less privileges", missing=need.name, without=need.without)
