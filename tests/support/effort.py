"""How long properties look for a counterexample.

Every run tries other examples, so the runs of a day add up. `make test` tries a few of each;
KUBEPROXY_EFFORT=50 tries fifty times as many.
"""

from __future__ import annotations

import os

EFFORT = float(os.environ.get("KUBEPROXY_EFFORT", "1"))


def examples(count: int) -> int:
    """How many examples a property is tried with, where an ordinary run tries `count`."""
    return max(1, round(count * EFFORT))
