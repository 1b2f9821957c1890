"""Logs in upstream's formats. Get a logger, log, and set up which stream is written."""

from kubeproxy.logs.entry import Entry, Severity
from kubeproxy.logs.logger import (
    LogOptions,
    get_logger,
    set_verbosity,
    setup_logging,
    stop_logging,
    write_entry,
)

__all__ = [
    "Entry",
    "LogOptions",
    "Severity",
    "get_logger",
    "set_verbosity",
    "setup_logging",
    "stop_logging",
    "write_entry",
]
