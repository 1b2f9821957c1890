"""The page of results in kernels that operators run, and the file that `make test-kernels` keeps.

A result is that of the last run of a test in a kernel; tests of one kernel may be run in parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from scripts.docs.markdown import code, page, table

PARTS = {
    "flows": "flows",
    "traffic": "a daemon carries traffic",
    "modules": "missing modules named",
    "release": "a kernel too old is named",
    "drift": "removed rules come back",
    "switches": "changes to this mode under load",
    "golden": "golden states",
    "image": "the image",
    "unit": "the systemd unit",
}
"""What was tested, and its heading."""
_INTRODUCTION = """\
`make test-kernels` boots Debian's kernels in QEMU; this page is made of the results it keeps, and
what is not in the table was not run. Flows use the kernel's own SCTP. In kernels before 5.13
nftables mode runs with its check of the release switched off, except where that check is tested.
What each mode needs of a kernel is in [versions](versions.md#linux)."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a test, and on which day."""

    state: str
    date: str
    connections: int = 0
    """New ones that were made during a change of mode, if they were counted."""


class KernelResults(msgspec.Struct):
    """By kernel, part, mode and name of a test its last outcome."""

    kernels: dict[str, dict[str, dict[str, dict[str, Outcome]]]] = {}

    def put(self, kernel: str, part: str, mode: str, name: str, outcome: Outcome) -> None:
        modes = self.kernels.setdefault(kernel, {}).setdefault(part, {})
        modes.setdefault(mode, {})[name] = outcome


def read_kernel_results(path: Path) -> KernelResults:
    if not path.exists():
        return KernelResults()
    return msgspec.json.decode(path.read_bytes(), type=KernelResults)


def write_kernel_results(path: Path, results: KernelResults) -> None:
    encoded = msgspec.json.encode(results, order="sorted")
    path.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")


def kernels_page(results: KernelResults) -> str:
    """The page as Markdown."""
    head = ("kernel", "what", "mode", "passed", "failed", "last run")
    return page(
        "Results in kernels that operators run",
        _INTRODUCTION,
        table(head, _rows(results)),
        *_changes_of_mode(results),
        "## Failures",
        _failures(results),
    )


def _rows(results: KernelResults) -> Iterator[tuple[str, ...]]:
    for kernel, parts in sorted(results.kernels.items(), key=lambda item: _release(item[0])):
        for part, heading in PARTS.items():
            for mode, outcomes in sorted(parts.get(part, {}).items()):
                passed = [o for o in outcomes.values() if o.state == "passed"]
                failed = len(outcomes) - len(passed)
                last = max(o.date for o in outcomes.values())
                yield kernel, heading, mode, str(len(passed)), str(failed), last


def _changes_of_mode(results: KernelResults) -> Iterator[str]:
    """Which change was made under how many new connections, where they were counted."""
    rows = [
        (kernel, before, after, str(outcome.connections))
        for kernel, parts in sorted(results.kernels.items(), key=lambda item: _release(item[0]))
        for after, outcomes in sorted(parts.get("switches", {}).items())
        for before, outcome in sorted(outcomes.items())
        if outcome.connections and outcome.state == "passed"
    ]
    if rows:
        yield "## Changes of mode under load"
        yield "None of these connections failed, and none that was open broke."
        yield table(("kernel", "from", "to", "new connections"), rows)


def _failures(results: KernelResults) -> str:
    found = [
        f"- {kernel}, {PARTS[part]}, {mode}: {code(name)}"
        for kernel, parts in sorted(results.kernels.items())
        for part, modes in sorted(parts.items())
        for mode, outcomes in sorted(modes.items())
        for name, outcome in sorted(outcomes.items())
        if outcome.state != "passed"
    ]
    return "\n".join(found or ["None."])


def _release(kernel: str) -> tuple[int, ...]:
    return tuple(int(number) for number in kernel.partition("-")[0].split(".") if number.isdigit())
