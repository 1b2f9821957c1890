"""The command `kpctl doctor`: options in, exit code out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kpctl.look.output import FORMATS, print_text

if TYPE_CHECKING:
    from kpctl.doctor.findings import Finding

WARNED, FAILED = 3, 1
_COLORS = {"ok": "green", "warning": "yellow", "failure": "red"}
_EPILOG = """\b
Examples:
  kpctl doctor                    this node, and the proxy that runs on it
  kpctl doctor -o json            the same for a program
  kpctl doctor --bundle FILE      what was found when the bundle was written
\b
Exit codes:
  0  nothing is wrong        3  warnings only
  1  something is broken     2  the command line is wrong
"""


@click.command(epilog=_EPILOG)
@click.option("--socket", type=click.Path(path_type=Path), help="the socket of a proxy")
@click.option("--bundle", type=click.Path(exists=True), help="a file of kpctl bundle")
@click.option("--all", "show_all", is_flag=True, help="show what is in order, too")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="table")
def doctor(socket: Path | None, bundle: str | None, show_all: bool, output: str) -> None:
    """Look for what keeps Services of this node from working, and name the remedy.

    Forwarding, routes, source checks, connection tracking, variants of iptables, sysctls, ports,
    other proxies and their rules, the clock, and the connection to the API server. Changes nothing.
    """
    from kpctl.doctor.examine import examine_here
    from kpctl.doctor.findings import Level
    from kpctl.look.sentences import use_sentences

    use_sentences()
    findings = _recorded(Path(bundle)) if bundle else examine_here(socket)
    _print(findings, output, show_all=show_all or output == "wide")
    levels = {finding.level for finding in findings}
    if Level.FAILURE in levels:
        sys.exit(FAILED)
    if Level.WARNING in levels:
        sys.exit(WARNED)


def _recorded(bundle: Path) -> list[Finding]:
    import msgspec

    from kpctl.doctor.findings import Finding
    from kpctl.snapshot.bundle import read_head

    return msgspec.convert(read_head(bundle).findings, type=list[Finding])


def _print(findings: list[Finding], output: str, *, show_all: bool) -> None:
    from kpctl.doctor.findings import Level
    from kpctl.look.output import columns, print_data

    if output in ("json", "yaml"):
        import msgspec

        print_data(msgspec.to_builtins(findings), output)
        return
    wrong = [finding for finding in findings if finding.level is not Level.OK]
    for finding in findings if show_all else wrong:
        _print_finding(finding, columns())
    counts = f"{len(findings)} checks: {len(findings) - len(wrong)} in order"
    print_text(f"{counts}, {len(wrong)} not." if wrong else f"{counts}. Nothing is wrong.")


def _print_finding(finding: Finding, width: int) -> None:
    level = finding.level.value
    first, *rest = _finding_lines(finding, width)
    print_text(first.removeprefix(level), marked=level, color=_COLORS[level] if width else None)
    for line in rest:
        print_text(line)


def _finding_lines(finding: Finding, width: int) -> list[str]:
    """The finding in lines of so many columns at most, or, with 0, in one."""
    import textwrap

    head = f"{finding.level.value:8} {finding.check}: {finding.text}"
    remedy = f"Remedy: {finding.remedy}" if finding.remedy else ""
    if not width:
        return [f"{head}. {remedy}" if remedy else head]
    lines = []
    for text, margin in ((head, ""), (remedy, " " * 9)):
        lines += textwrap.wrap(
            text,
            max(width, 40),
            initial_indent=margin,
            subsequent_indent=" " * 9,
            break_on_hyphens=False,
            break_long_words=False,
        )
    return lines
