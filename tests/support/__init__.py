"""What tests share. Whichever of it comes first gives this process a lock of iptables-legacy.

The usual one is the machine's, whatever the network namespace: a test that is paused while it holds
it would keep those of other processes waiting, whose tools give up after five seconds. It is set
here because the program looks at the variable when it is imported.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from pathlib import Path

LOCK_VARIABLE = "XTABLES_LOCKFILE"


def _take_own_lock() -> None:
    descriptor, path = tempfile.mkstemp(prefix="kubeproxy-tests-", suffix=".lock")
    os.close(descriptor)
    os.environ[LOCK_VARIABLE] = path
    atexit.register(_remove, Path(path), os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        path.unlink(missing_ok=True)


_take_own_lock()
