"""The process around the event loop: its descriptors, its signals, its end.

Imported before anything else, so only the standard library is imported here.

Signals: SIGTERM, SIGINT and SIGHUP end the process at once, from the first moment on, also as
PID 1, where the kernel ignores signals without a handler. Rules stay in the kernel, tools that run
come to their end on their own, and nothing waits for threads: a CPU profile or a name look-up may
take half a minute. The event loop is asked first, to write a last line to the log. If it does not
come to that in a moment, because it is blocked in a system call or the reader of the log does not
read, the process ends without, and so it does at a second signal. A process that carries
connections, and has a successor, stays for them (`stays`). What a Go program ignores, such
as SIGUSR1, is ignored here, too: it is sent by habit, and the default is to end the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import asyncio

GRACE_SECONDS = 2.0
"""The event loop of a starved node may need more than half a second to come to a signal."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED = (
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(signal.SIGIO, signal.SIGPWR, signal.SIGXCPU),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
_UNFINISHED = ("cleanup", "init-only")
"""Flags of commands that have failed when they are interrupted."""


class Signals:
    """What a signal does to this process."""

    def __init__(self, argv: Sequence[str] = ()) -> None:
        """Take the exit code from the arguments until `use` sets it by what they mean."""
        names = (word.lstrip("-").replace("_", "-") for word in argv)
        self._code = int(any(name.startswith(_UNFINISHED) for name in names))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_words: Callable[[], None] = lambda: None
        self._is_ending = False
        self.stays: Callable[[], bool] = lambda: False
        """Asked when a signal ends the process: does it end by itself, after a last task?

        The answer may take seconds: a successor has that long to show itself."""

    def install(self) -> None:
        """Handle the signals that end a process, except those it was started to ignore."""
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        for number in _IGNORED:
            # Not SIG_IGN, which the tools that are run would inherit.
            signal.signal(number, lambda *_: None)

    def use(
        self, loop: asyncio.AbstractEventLoop, *, code: int, last_words: Callable[[], None]
    ) -> None:
        """From now on call `last_words` in this loop before the process ends with `code`."""
        self._loop, self._code, self._last_words = loop, code, last_words

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None or self._is_ending:
            os._exit(self._code)
        self._is_ending = True
        signal.signal(signal.SIGALRM, lambda *_: os._exit(self._code))
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        # Not here: the signal may have come in the middle of writing a log line.
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        # The loop is not blocked, and the search for a successor has a limit of its own.
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            if self.stays():
                return
        except Exception:
            os._exit(self._code)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        self._leave()

    def _leave(self) -> NoReturn:
        try:
            self._last_words()
        finally:
            os._exit(self._code)


def open_standard_streams() -> None:
    """Open what is closed of the descriptors 0 to 2, as Go does.

    Otherwise a socket of ours would get the number, and what is meant for the log would be sent
    there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    # Streams without a descriptor are None, against what their types say.
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            stream = os.fdopen(number, "w", encoding="utf-8", errors="replace", closefd=False)
            setattr(sys, name, stream)


def print_text(text: str, number: int) -> None:
    """Print to a standard stream. If its reader is gone or its disk is full, print nothing."""
    stream = sys.stdout if number == 1 else sys.stderr
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        # What stays in the buffer would fail again when the interpreter exits.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def leave(code: int) -> NoReturn:
    """End the process, without waiting for threads or taking the heap of a cluster apart."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
