"""Log handlers: records of the standard library become lines on a stream.

A handler takes our records and those of libraries, and writes both in the configured format. A log
whose reader is gone (a closed pipe) is no reason to stop, so failures to write are dropped. Which
handlers exist is decided in `logger`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Protocol, TextIO

from kubeproxy.logs.entry import Entry, Severity

_SEVERITIES = (
    (logging.CRITICAL, Severity.FATAL),
    (logging.ERROR, Severity.ERROR),
    (logging.WARNING, Severity.WARNING),
)
_LARGEST_BUFFER = 2 * 1024**3


class _Stream(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


class LogHandler(logging.Handler):
    """Formats records of ours and of libraries, and writes them to one stream."""

    def __init__(
        self,
        stream: _Stream,
        formatter: Callable[[Entry], str],
        *,
        accepts: Callable[[Severity], bool],
    ) -> None:
        super().__init__()
        self._stream = stream
        self._format_entry = formatter
        self._accepts = accepts

    def emit(self, record: logging.LogRecord) -> None:
        self.write(entry_of(record))

    def write(self, entry: Entry) -> None:
        if not self._accepts(entry.severity):
            return
        # The reader of the log may be gone (closed pipe); the proxy must go on without it.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(self._format_entry(entry))
            if not isinstance(self._stream, InfoStream):
                self._stream.flush()

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def close(self) -> None:
        self.flush()
        if isinstance(self._stream, InfoStream):
            self._stream.stop()
        super().close()


def entry_of(record: logging.LogRecord) -> Entry:
    """Convert a record of the standard library. Records of `Logger` carry values and error."""
    severity = next((s for level, s in _SEVERITIES if record.levelno >= level), Severity.INFO)
    caller = f"{'/'.join(record.pathname.rsplit('/', 2)[-2:])}:{record.lineno}"
    ours = getattr(record, "kubeproxy", None)
    values, error, verbosity = ours or ({}, None, 0)
    message = record.getMessage()
    if record.exc_info and not ours:
        message = f"{message}\n{logging.Formatter().formatException(record.exc_info)}"
    return Entry(
        message=message,
        severity=severity,
        values=values,
        error=error,
        verbosity=verbosity,
        is_structured=ours is not None,
        caller=caller,
        timestamp=record.created,
        process=os.getpid(),
    )


class InfoStream:
    """A stream that collects up to a number of bytes and is written at least once per period.

    Flushing runs in a thread: handlers are called from any thread, with or without an event loop.
    """

    def __init__(self, stream: TextIO, *, buffer_bytes: int, flush_seconds: float) -> None:
        self._stream = stream
        self._limit = min(buffer_bytes, _LARGEST_BUFFER)
        self._pending: list[str] = []
        self._size = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        if self._limit:
            self._start_flushing(flush_seconds)

    def _start_flushing(self, period_seconds: float) -> None:
        def flush_regularly() -> None:
            while not self._stopped.wait(period_seconds):
                # A full disk may have room again.
                with contextlib.suppress(OSError, ValueError):
                    self.flush()

        try:
            threading.Thread(target=flush_regularly, name="log-flush", daemon=True).start()
        except RuntimeError:  # the limit of threads is reached
            self._limit = 0

    def write(self, text: str, /) -> None:
        with self._lock:
            self._pending.append(text)
            self._size += len(text)
            if self._size >= self._limit:
                self._write_out()

    def flush(self) -> None:
        with self._lock:
            self._write_out()

    def stop(self) -> None:
        self._stopped.set()

    def _write_out(self) -> None:
        pending, self._pending, self._size = self._pending, [], 0
        self._stream.write("".join(pending))
        self._stream.flush()
