"""The commands `kpctl doctor` and `kpctl bundle`: options in, exit code out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kpctl.look.output import FORMATS

if TYPE_CHECKING:
    from kpctl.doctor.findings import Finding
    from kpctl.snapshot.types import Snapshot

WARNED, FAILED = 3, 1
_MOST_ROUTES = 200
_MOST_FLOWS = 1000
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


@click.command(
    epilog="""\b
Examples:
  kpctl bundle support.gz         writes everything that a helper needs
  kpctl explain shop/web --bundle support.gz
"""
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--socket", type=click.Path(path_type=Path), help="the socket of a proxy")
def bundle(file: Path, socket: Path | None) -> None:
    """Write what a running proxy shows to FILE, for commands with --bundle, here or elsewhere.

    It holds Services, endpoints, the configuration, the last rounds and repairs, what the kernel
    has of ours, connections by endpoint, and what `kpctl doctor` finds. It holds no tokens, keys or
    other contents of files. Only its owner may read it.
    """
    from contextlib import closing

    import msgspec

    from kpctl.look.sentences import use_sentences
    from kpctl.snapshot.bundle import Head, write_bundle
    from kpctl.snapshot.client import Client, find_socket

    use_sentences()
    findings = msgspec.to_builtins(examine_here(socket))
    head = Head(findings=findings, connections=_connections(socket))
    with closing(Client(find_socket(socket))) as client:
        count = write_bundle(client, file, with_kernel=True, head=head)
    click.echo(f"{file}: {count} Services, {file.stat().st_size / 1024:.0f} KiB")


def _connections(socket: Path | None) -> list[object] | None:
    """Return the flows of Services by endpoint; None, with a note, where they cannot be read."""
    import msgspec

    from kpctl.connections.gather import gather
    from kpctl.snapshot.client import Client, find_socket
    from kpctl.snapshot.live import read_live
    from kubeproxy.errors import ProxyError

    try:
        tally = gather(read_live(socket), Client(find_socket(socket)), limit=_MOST_FLOWS)
    except ProxyError as error:
        click.echo(f"Note: connections are left out: {error}", err=True)
        return None
    found: list[object] = msgspec.to_builtins(tally.groups())
    return found


def examine_here(socket: Path | None) -> list[Finding]:
    """Examine this host and the proxy that answers at the socket."""
    import asyncio

    from kpctl.doctor.checks import Case, examine
    from kpctl.doctor.host import read_host
    from kpctl.snapshot.live import read_live
    from kubeproxy.errors import ProxyError

    snapshot, problem = None, ""
    try:
        snapshot = read_live(socket)
    except ProxyError as error:
        problem = str(error)

    async def look() -> Case:
        host = await read_host(_destinations(snapshot) if snapshot else ())
        unsupported = await _unsupported(snapshot) if snapshot else ""
        return Case(host, snapshot, problem, unsupported)

    return examine(asyncio.run(look()))


def _destinations(snapshot: Snapshot) -> list[str]:
    """Return some virtual addresses and endpoints: each network of them once or twice."""
    found: dict[str, None] = {}
    networks: set[str] = set()
    for _, plan in snapshot.plans():
        endpoints = [endpoint.address for endpoint in plan.reachable[:10]]
        for address in (*(f.address for f in plan.frontends if f.address), *endpoints):
            network = address.rpartition(":" if ":" in address else ".")[0]
            if network not in networks:
                networks.add(network)
                found[address] = None
    return list(found)[:_MOST_ROUTES]


async def _unsupported(snapshot: Snapshot) -> str:
    from kubeproxy.errors import Unsupported
    from kubeproxy.modes.registry import load_mode

    mode, settings = load_mode(snapshot.mode), snapshot.settings
    try:
        options = mode.options(settings.config, settings.extensions)
        await mode.check(tuple(snapshot.pipelines), options)
    except Unsupported as error:
        return str(error)
    return ""


def _print(findings: list[Finding], output: str, *, show_all: bool) -> None:
    from kpctl.doctor.findings import Level
    from kpctl.look.output import print_data

    if output in ("json", "yaml"):
        import msgspec

        print_data(msgspec.to_builtins(findings), output)
        return
    wrong = [finding for finding in findings if finding.level is not Level.OK]
    for finding in findings if show_all else wrong:
        for line in finding_lines(finding, _columns()):
            click.echo(line)
    counts = f"{len(findings)} checks: {len(findings) - len(wrong)} in order"
    click.echo(f"{counts}, {len(wrong)} not." if wrong else f"{counts}. Nothing is wrong.")


def _columns() -> int:
    """Return the width of a terminal; a pipe gets one line for each finding."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def finding_lines(finding: Finding, columns: int) -> list[str]:
    """The finding in lines of so many columns at most, or, with 0, in one."""
    import textwrap

    head = f"{finding.level.value:8} {finding.check}: {finding.text}"
    remedy = f"Remedy: {finding.remedy}" if finding.remedy else ""
    if not columns:
        return [f"{head}. {remedy}" if remedy else head]
    lines = []
    for text, margin in ((head, ""), (remedy, " " * 9)):
        lines += textwrap.wrap(
            text,
            max(columns, 40),
            initial_indent=margin,
            subsequent_indent=" " * 9,
            break_on_hyphens=False,
            break_long_words=False,
        )
    color = _COLORS.get(finding.level.value)
    word = finding.level.value
    return [click.style(word, fg=color) + lines[0][len(word) :], *lines[1:]]
