"""The iptables mode's entry in the registry."""

from __future__ import annotations

from kubeproxy.backends.base import Mode
from kubeproxy.backends.iptables.backend import IptablesBackend
from kubeproxy.backends.iptables.cleanup import cleanup
from kubeproxy.backends.iptables.probe import check_families

MODE = Mode(
    name="iptables",
    create=IptablesBackend,
    check=check_families,
    cleanup=cleanup,
    leftovers_of=("nftables", "ipvs", "userspace"),
)
