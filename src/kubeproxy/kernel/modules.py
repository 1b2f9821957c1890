"""Loading a kernel module by name.

Why: some of what ipvs mode needs exists only once its module is loaded, and the kernel loads it by
itself only for some requests. Promise: the program that is run is the one the kernel itself would
run, and failing is no exception: a module that is built in cannot be loaded either, so the caller
has to try what it needs. Leaves to others: which modules.
"""

from __future__ import annotations

from kubeproxy.errors import KernelError
from kubeproxy.kernel.exec import run_tool
from kubeproxy.kernel.sysctl import find_sysctl

_TIMEOUT_SECONDS = 30.0


async def load_module(name: str) -> str:
    """Try to load a module. Return why it failed, or an empty text."""
    program = find_sysctl("kernel/modprobe") or "modprobe"
    try:
        result = await run_tool([program, "-va", name], timeout_seconds=_TIMEOUT_SECONDS)
    except KernelError as error:
        return str(error)
    return "" if result.is_success else f"{program} {name}: {result.output or 'failed'}"
