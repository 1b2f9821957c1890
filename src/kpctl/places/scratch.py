"""A network namespace without a name that lasts as long as a `with` block.

For tests and benchmarks that program a kernel: the calling thread enters a fresh namespace, and
on leaving it the kernel removes the namespace with everything in it, also after a crash, because
nothing else holds it. Sockets opened inside keep belonging to it; child processes start in it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from kpctl.places.netns import enter_namespace, leave_namespace


@contextlib.contextmanager
def scratch_namespace() -> Iterator[None]:
    """Run the block in a new network namespace, with `lo` up."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        leave_namespace()
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            enter_namespace(home)
    finally:
        os.close(home)
