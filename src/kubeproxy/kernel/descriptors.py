"""How many files this process may have open.

systemd and containerd start processes with a soft limit of 1,024, for programs that use select(2).
We do not, and a node may need one listener per Service, so the limit is raised at start, as Go
raises its own. Processes started by this one inherit it.
"""

from __future__ import annotations

import resource


def raise_descriptor_limit(wanted: int = 0) -> int:
    """Raise the soft limit to the hard one, and that one to `wanted` if it is lower. Return it.

    Raising the hard limit needs a capability. Fewer than wanted are no reason to fail.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    for limit in (hard,) if unlimited else (max(hard, wanted), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        except (ValueError, OSError):
            continue
        return max(limit, wanted) if unlimited else limit
    return soft
