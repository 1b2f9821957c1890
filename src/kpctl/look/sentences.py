"""Messages of the daemon's code as sentences for a person: `kpctl` has no log.

The code that `kpctl` shares with the daemon logs what is wrong with an object or a host. Here each
message becomes one line on standard error, without time, process and file, and each only once
(both families find the same mistake).
"""

from __future__ import annotations

import logging
import sys

from kubeproxy.go.quoting import harmless
from kubeproxy.logs import Entry, stop_logging
from kubeproxy.logs.handler import LogHandler


def use_sentences() -> None:
    """Write messages as sentences from now on."""
    stop_logging()
    root = logging.getLogger()
    root.handlers = [_Sentences()]
    root.setLevel(logging.INFO)


class _Sentences(LogHandler):
    """Writes each sentence once."""

    def __init__(self) -> None:
        super().__init__(sys.stderr, format_sentence, accepts=lambda _: True)
        self._written: set[str] = set()

    def write(self, entry: Entry) -> None:
        text = format_sentence(entry)
        if text not in self._written:
            self._written.add(text)
            super().write(entry)


def format_sentence(entry: Entry) -> str:
    """Format as `Error: Object is left out (Service shop/web): why`, with a newline."""
    label = "Error" if entry.severity.is_error else "Note"
    values = {name: _text(value) for name, value in entry.values.items()}
    about = " ".join(filter(None, (values.pop("kind", ""), values.pop("name", ""))))
    details = ", ".join(filter(None, (about, *(f"{k} {v}" for k, v in values.items()))))
    subject = f"{entry.message} ({details})" if details else entry.message
    text = f"{label}: {subject}: {entry.error}" if entry.error else f"{label}: {subject}"
    # Other lines than the first must not look like another sentence.
    return harmless(text).replace("\n", "\n  ") + "\n"


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
