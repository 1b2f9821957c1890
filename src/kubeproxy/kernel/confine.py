"""Give up privileges in one call: for the daemon, and for the carrier of userspace mode."""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.errors import KernelError
from kubeproxy.kernel.capabilities import forbid_new_privileges, keep_only
from kubeproxy.kernel.seccomp import install_filter


def give_up_privileges(kept: int) -> Sequence[str]:
    """Keep these capabilities at most, get no new ones, and filter system calls.

    Return what could not be done. One step does not depend on another.
    """

    def reduce_capabilities() -> None:
        keep_only(kept)

    problems: list[str] = []
    # In this order: the bounding set is reduced by a capability that goes, too, and the kernel
    # takes a filter only from a process that gets no new privileges.
    for step in (reduce_capabilities, forbid_new_privileges, install_filter):
        try:
            step()
        except KernelError as error:
            problems.append(str(error))
    return problems
