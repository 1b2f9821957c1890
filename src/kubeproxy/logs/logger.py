"""Logging with verbosity levels, on top of the standard library.

    log = get_logger(__name__)
    log.info("Set sysctl", sysctl=name, value=1)
    log.error(error, "Sync failed", ipFamily=family)
    log.v(4).info("Skipped, nothing changed", service=name)

Messages and keys keep upstream's spelling where it has them, because people match on both. A
disabled `v(n)` costs one comparison. Loggers of libraries go through the same handlers and come out
in the same format. Which streams are written is decided by `setup_logging` alone.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Protocol, TextIO

import msgspec

from kubeproxy.logs.entry import Entry, Severity, format_json, format_text

_SEVERITIES = (
    (logging.CRITICAL, Severity.FATAL),
    (logging.ERROR, Severity.ERROR),
    (logging.WARNING, Severity.WARNING),
)
_LARGEST_BUFFER = 2 * 1024**3


class LogOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How to log; the defaults are what is used before options are known."""

    is_json: bool = False
    verbosity: int = 0
    vmodule: tuple[tuple[str, int], ...] = ()
    split_stream: bool = False
    info_buffer_bytes: int = 0
    flush_seconds: float = 5.0


class Verbose(Protocol):
    """What `v(level)` answers."""

    enabled: bool

    def info(self, message: str, /, **values: object) -> None: ...


class _Silent:
    enabled = False

    def info(self, message: str, /, **values: object) -> None:
        """Say nothing: the level is not asked for."""


class _Speaking:
    __slots__ = ("_level", "_logger")
    enabled = True

    def __init__(self, logger: Logger, level: int) -> None:
        self._logger = logger
        self._level = level

    def info(self, message: str, /, **values: object) -> None:
        self._logger.emit(logging.INFO, message, values, verbosity=self._level)


_SILENT: Verbose = _Silent()


class Logger:
    """The log of one module."""

    __slots__ = ("_target", "module", "threshold")

    def __init__(self, name: str) -> None:
        self._target = logging.getLogger(name)
        self.module = name.rpartition(".")[2]
        self.threshold = 0

    def v(self, level: int) -> Verbose:
        """A log for messages of this verbosity; silent unless somebody asked for it."""
        return _Speaking(self, level) if level <= self.threshold else _SILENT

    def info(self, message: str, /, **values: object) -> None:
        self.emit(logging.INFO, message, values)

    def warning(self, message: str, /, **values: object) -> None:
        self.emit(logging.WARNING, message, values)

    def error(self, error: BaseException | str | None, message: str, /, **values: object) -> None:
        text = None if error is None else str(error)
        self.emit(logging.ERROR, message, values, error=text)

    def emit(
        self,
        level: int,
        message: str,
        values: dict[str, object],
        *,
        error: str | None = None,
        verbosity: int = 0,
    ) -> None:
        """Hand one message to the handlers; the caller is two frames up."""
        frame = sys._getframe(2)
        record = logging.LogRecord(
            self._target.name, level, frame.f_code.co_filename, frame.f_lineno, message, None, None
        )
        record.kubeproxy = (values, error, verbosity)
        self._target.handle(record)


class _Levels:
    """The verbosity of every module; logging is global, so its settings are too."""

    def __init__(self) -> None:
        self.verbosity = 0
        self.vmodule: tuple[tuple[str, int], ...] = ()
        self.loggers: dict[str, Logger] = {}

    def set(self, verbosity: int, vmodule: tuple[tuple[str, int], ...]) -> None:
        self.verbosity = verbosity
        self.vmodule = vmodule
        for logger in self.loggers.values():
            logger.threshold = self.threshold(logger.module)

    def threshold(self, module: str) -> int:
        for pattern, level in self.vmodule:
            if fnmatch.fnmatchcase(module, pattern):
                return level
        return self.verbosity


_levels = _Levels()
_handlers: list[_Handler] = []


def get_logger(name: str) -> Logger:
    """The log of a module; call it with `__name__`."""
    logger = _levels.loggers.get(name)
    if logger is None:
        logger = _levels.loggers[name] = Logger(name)
        logger.threshold = _levels.threshold(logger.module)
    return logger


def get_verbosity() -> int:
    return _levels.verbosity


def set_verbosity(verbosity: int) -> None:
    """Change `-v` while running; `--vmodule` stays as it is."""
    _levels.set(verbosity, _levels.vmodule)


def setup_logging(
    options: LogOptions, *, stdout: TextIO | None = None, stderr: TextIO | None = None
) -> None:
    """Write logs as the options say; replaces an earlier set-up."""
    stop_logging()
    formatter = format_json if options.is_json else format_text
    errors = stderr or sys.stderr
    if options.split_stream:
        out = _InfoStream(stdout or sys.stdout, options)
        _install(_Handler(out, formatter, accepts=lambda severity: not severity.is_error))
        _install(_Handler(errors, formatter, accepts=lambda severity: severity.is_error))
    else:
        _install(_Handler(errors, formatter, accepts=lambda _: True))
    logging.getLogger().setLevel(logging.INFO)
    _levels.set(options.verbosity, options.vmodule)


def stop_logging() -> None:
    """Flush and remove our handlers."""
    root = logging.getLogger()
    while _handlers:
        handler = _handlers.pop()
        root.removeHandler(handler)
        handler.close()


def write_entry(entry: Entry) -> None:
    """Write a message that was made elsewhere, with its own time and caller."""
    for handler in _handlers:
        handler.write(entry)


def flush_logs() -> None:
    """Write out what is still buffered."""
    for handler in _handlers:
        handler.flush()


def _install(handler: _Handler) -> None:
    _handlers.append(handler)
    logging.getLogger().addHandler(handler)


class _Stream(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


class _Handler(logging.Handler):
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
        # Nobody may read the log any more (closed pipe); the proxy must go on without it.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(self._format_entry(entry))
            if not isinstance(self._stream, _InfoStream):
                self._stream.flush()

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def close(self) -> None:
        self.flush()
        if isinstance(self._stream, _InfoStream):
            self._stream.stop()
        super().close()


def entry_of(record: logging.LogRecord) -> Entry:
    """The entry a record of the standard library stands for."""
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


class _InfoStream:
    """Standard output, collecting up to a number of bytes, written at least once per period."""

    def __init__(self, stream: TextIO, options: LogOptions) -> None:
        self._stream = stream
        self._limit = min(options.info_buffer_bytes, _LARGEST_BUFFER)
        self._pending: list[str] = []
        self._size = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        if self._limit:
            self._start_flushing(options.flush_seconds)

    def _start_flushing(self, period_seconds: float) -> None:
        def flush_regularly() -> None:
            while not self._stopped.wait(period_seconds):
                self.flush()

        threading.Thread(target=flush_regularly, name="log-flush", daemon=True).start()

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
