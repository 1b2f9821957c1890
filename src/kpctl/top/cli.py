"""The command `kpctl top`: options in, a live view or one sample out."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kpctl.snapshot.options import output_option

if TYPE_CHECKING:
    from kpctl.top.watch import Watch

_LINES_BESIDES_ROWS = 9

EPILOG = """\b
Examples:
  kpctl top                      live, until q or Ctrl-C
  kpctl top -n shop              only Services of one namespace
  kpctl top shop/web --once      one Service, one sample
  kpctl top -o json -i 10        ten seconds, for a program
\b
New connections come from conntrack events, in userspace mode from the proxy.
Refused packets are counted by rules of iptables and userspace mode; in nftables
and ipvs mode no rule counts them by Service, and a note says so.
\b
Exit codes:
  0  shown
  1  failed: no proxy answers, or the kernel refused
  2  the command line is wrong
"""


@click.command(epilog=EPILOG)
@click.argument("service", default="")
@click.option("--socket", type=click.Path(path_type=Path), help="the socket of a proxy")
@click.option("-n", "--namespace", default="", help="only Services of this namespace")
@click.option(
    "-i", "--interval", type=click.FloatRange(0.1, 3600), default=1.0, help="seconds per sample"
)
@click.option("--once", is_flag=True, help="print one sample (as when piped)")
@output_option
def top(
    service: str, socket: Path | None, namespace: str, interval: float, once: bool, output: str
) -> None:
    """Show new connections per Service and endpoint, refusals, and what rounds cost.

    SERVICE is NAME, NAMESPACE/NAME, ADDRESS:PORT or a node port.
    """
    from kpctl.connections.select import parse_selection
    from kpctl.top.watch import Watch

    try:
        selection = parse_selection(service, namespace)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with closing(Watch(socket, selection)) as watch:
        if once or output in ("json", "yaml") or not sys.stdout.isatty():
            _print_once(watch, interval, output)
        else:
            _show_live(watch, interval)


def _print_once(watch: Watch, interval: float, output: str) -> None:
    from kpctl.look.output import print_data
    from kpctl.top.view import document, lines

    sample = watch.sample(interval)
    snapshot = watch.snapshot
    if output in ("json", "yaml"):
        print_data(document(snapshot.origin, snapshot.mode, sample), output)
    else:
        click.echo("\n".join(lines(snapshot.origin, snapshot.mode, sample)))


def _show_live(watch: Watch, interval: float) -> None:
    from kpctl.top.screen import draw, is_end_asked, rows_that_fit, whole_screen
    from kpctl.top.view import lines

    try:
        with whole_screen():
            draw([f"{watch.snapshot.origin}: measuring for {interval:g} s (q ends)"])
            while not is_end_asked():
                sample = watch.sample(interval)
                shown = rows_that_fit(_LINES_BESIDES_ROWS)
                snapshot = watch.snapshot
                draw(lines(snapshot.origin, snapshot.mode, sample, shown))
    except KeyboardInterrupt:
        return
