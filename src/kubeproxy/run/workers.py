"""The threads of the event loop's executor, on a host that allows no more of them.

A thread is needed where something blocks: a large file, a table of the kernel, a name look-up.
Where the limit of threads or processes is reached (`pids.max`, a fork bomb in some pod), work waits
for a thread that exists, or is done in the calling one if there is none: slow, but the proxy goes
on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import Empty


class Workers(ThreadPoolExecutor):
    """An executor that needs no thread to be started."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                self._work_here()

    def _work_here(self) -> None:
        try:
            self._work_queue.get_nowait().run()
        except Empty:
            return


def wait_without_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop wait for programs by a descriptor, as Python 3.12 does by itself.

    Otherwise each has a thread that waits for its end, and the carrier's keeps the capabilities of
    the start. Linux before 5.3 has no such descriptor, and everything works with threads.
    """
    if sys.version_info >= (3, 12):
        return
    with contextlib.suppress(OSError):
        os.close(os.pidfd_open(os.getpid()))
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
