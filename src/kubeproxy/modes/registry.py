"""The modes there are. A new mode is a folder and one line here.

Each entry is the import path of a `Mode`; it is imported only when chosen, so that starting one
mode never pays for the others.
"""

from __future__ import annotations

from importlib import import_module

from kubeproxy.errors import Unsupported
from kubeproxy.modes.base import AnyMode, Mode

_MODES: dict[str, str] = {
    # Before iptables: some chains have the same name in both, and in this order clean-up finds
    # nothing that still leads to them.
    "ipvs": "kubeproxy.modes.ipvs.mode",
    "iptables": "kubeproxy.modes.iptables.mode",
    "nftables": "kubeproxy.modes.nftables.mode",
    "userspace": "kubeproxy.modes.userspace.mode",
}


def mode_names() -> tuple[str, ...]:
    return tuple(_MODES)


def load_mode(name: str) -> AnyMode:
    """The mode of this name."""
    try:
        path = _MODES[name]
    except KeyError:
        known = ", ".join(_MODES)
        raise Unsupported(f'there is no mode "{name}"; the modes are: {known}') from None
    mode = import_module(path).MODE
    if not isinstance(mode, Mode):
        raise TypeError(f"{path}.MODE is not a Mode")
    return mode
