"""Logs in upstream's formats: get a logger, write, and set up where it goes."""

from kubeproxy.logs.entry import Entry, Severity
from kubeproxy.logs.logger import (
    Logger,
    LogOptions,
    Verbose,
    flush_logs,
    get_logger,
    get_verbosity,
    set_verbosity,
    setup_logging,
    stop_logging,
    write_entry,
)

__all__ = [
    "Entry",
    "LogOptions",
    "Logger",
    "Severity",
    "Verbose",
    "flush_logs",
    "get_logger",
    "get_verbosity",
    "set_verbosity",
    "setup_logging",
    "stop_logging",
    "write_entry",
]
