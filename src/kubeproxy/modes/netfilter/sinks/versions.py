"""The versions of the iptables programs, each asked for once in the life of this process.

Why: at start the choice of a variant, the check and each family's tables all need them, and asking
is a process. A program elsewhere in PATH is another one.
"""

from __future__ import annotations

import shutil

from kubeproxy.kernel.exec import run_tool
from kubeproxy.modes.netfilter.sinks.tools import Version, parse_version

_known: dict[str, Version] = {}
"""By path; only answers that can be relied upon."""


async def version_of(program: str) -> Version:
    """The version of a program, or one that understands no option if it prints none.

    Raises ToolMissing, or KernelError if it cannot be run.
    """
    path = shutil.which(program) or program
    if path not in _known:
        done = await run_tool([program, "--version"])
        version = parse_version(done.output) if done.is_success else Version()
        if version == Version():
            return version
        _known[path] = version
    return _known[path]
