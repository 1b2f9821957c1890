"""Logging with verbosity levels, on top of the standard library.

    log = get_logger(__name__)
    log.info("Set sysctl", sysctl=name, value=1)
    log.error(error, "Sync failed", ipFamily=family)
    log.v(4).info("Skipped, nothing changed", service=name)

Messages and keys keep upstream's spelling where it has them, because people match on both. A
disabled `v(n)` costs one comparison. Messages of libraries go through the same handlers and come
out in the same format. Which streams are written is decided by `setup_logging` alone. The format of
a line is in `entry`.
"""

from __future__ import annotations

import fnmatch
import logging
import sys
from typing import Protocol, TextIO

import msgspec

from kubeproxy.logs.entry import Entry, format_json, format_text
from kubeproxy.logs.handler import InfoStream, LogHandler


class LogOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How to log. The defaults are used until the options are known."""

    is_json: bool = False
    verbosity: int = 0
    vmodule: tuple[tuple[str, int], ...] = ()
    split_stream: bool = False
    info_buffer_bytes: int = 0
    flush_seconds: float = 5.0


class Verbose(Protocol):
    """The result of `v(level)`: a log that may be disabled."""

    enabled: bool

    def info(self, message: str, /, **values: object) -> None: ...


class _Disabled:
    enabled = False

    def info(self, message: str, /, **values: object) -> None:
        """Do nothing: the verbosity is lower than the level."""


class _Enabled:
    __slots__ = ("_level", "_logger")
    enabled = True

    def __init__(self, logger: Logger, level: int) -> None:
        self._logger = logger
        self._level = level

    def info(self, message: str, /, **values: object) -> None:
        self._logger.emit(logging.INFO, message, values, verbosity=self._level)


_DISABLED: Verbose = _Disabled()


class Logger:
    """The log of one module."""

    __slots__ = ("_target", "module", "threshold")

    def __init__(self, name: str) -> None:
        self._target = logging.getLogger(name)
        self.module = name.rpartition(".")[2]
        self.threshold = 0

    def v(self, level: int) -> Verbose:
        """Return a log for messages of this verbosity, disabled unless `-v` is at least that."""
        return _Enabled(self, level) if level <= self.threshold else _DISABLED

    def info(self, message: str, /, **values: object) -> None:
        """Log a message that is shown at any verbosity."""
        self.emit(logging.INFO, message, values)

    def error(self, error: BaseException | str | None, message: str, /, **values: object) -> None:
        """Log an error, if there is one as the value of `err`."""
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
        """Pass one message to the handlers. The caller shown in it is two frames up."""
        frame = sys._getframe(2)
        record = logging.LogRecord(
            self._target.name, level, frame.f_code.co_filename, frame.f_lineno, message, None, None
        )
        record.kubeproxy = (values, error, verbosity)
        self._target.handle(record)


class _Levels:
    """The verbosity of every module. Logging is global, so its settings are too."""

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
_handlers: list[LogHandler] = []


def get_logger(name: str) -> Logger:
    """Return the log of a module. Call it with `__name__`."""
    logger = _levels.loggers.get(name)
    if logger is None:
        logger = _levels.loggers[name] = Logger(name)
        logger.threshold = _levels.threshold(logger.module)
    return logger


def set_verbosity(verbosity: int) -> None:
    """Change `-v` while running. `--vmodule` stays as it is."""
    _levels.set(verbosity, _levels.vmodule)


def setup_logging(
    options: LogOptions, *, stdout: TextIO | None = None, stderr: TextIO | None = None
) -> None:
    """Write logs according to the options. Replaces an earlier set-up."""
    stop_logging()
    formatter = format_json if options.is_json else format_text
    errors = stderr or sys.stderr
    if options.split_stream:
        out = InfoStream(
            stdout or sys.stdout,
            buffer_bytes=options.info_buffer_bytes,
            flush_seconds=options.flush_seconds,
        )
        _install(LogHandler(out, formatter, accepts=lambda severity: not severity.is_error))
        _install(LogHandler(errors, formatter, accepts=lambda severity: severity.is_error))
    else:
        _install(LogHandler(errors, formatter, accepts=lambda _: True))
    logging.getLogger().setLevel(logging.INFO)
    _levels.set(options.verbosity, options.vmodule)


def stop_logging() -> None:
    """Flush and remove our handlers, and forget the verbosity that was set up with them."""
    _levels.set(0, ())
    root = logging.getLogger()
    while _handlers:
        handler = _handlers.pop()
        root.removeHandler(handler)
        handler.close()


def write_entry(entry: Entry) -> None:
    """Write a message that has its own time and caller, such as one from before the set-up."""
    for handler in _handlers:
        handler.write(entry)


def _install(handler: LogHandler) -> None:
    _handlers.append(handler)
    logging.getLogger().addHandler(handler)
