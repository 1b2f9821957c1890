"""Whether a process has more privileges than modes keep: from what the kernel shows of it."""

from __future__ import annotations

import re
from collections.abc import Collection

from kubeproxy.kernel.capabilities import capability_mask
from kubeproxy.run.confinement import kept_capabilities

_SETS = ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")


def extra_privileges(status: str, modes: Collection[str]) -> str:
    """Read /proc/PID/status of a proxy. Return what it has beyond these modes; empty if nothing."""
    shown = dict(re.findall(r"^(\w+):\s+(\S+)", status, re.MULTILINE))
    kept = capability_mask(kept_capabilities(*modes, has_files_of_others=True))
    extra = [f"{name} {shown[name]}" for name in _SETS if int(shown[name], 16) & ~kept]
    if shown.get("NoNewPrivs") != "1":
        extra.append("new privileges by running programs")
    return ", ".join(extra)
