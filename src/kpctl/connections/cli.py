"""The command `kpctl connections`: options in, exit code out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kpctl.snapshot.options import Place, about_a_proxy, output_option

if TYPE_CHECKING:
    from collections.abc import Collection

    from kpctl.connections.flows import EndpointFlows
    from kpctl.connections.select import Selection
    from kubeproxy.facts.ids import Family, ServicePortId

STALE = 3
UNKNOWN = 4
DEFAULT_FLOWS = 100
MOST_FLOWS = 1000

EPILOG = """\b
Examples:
  kpctl connections                    all Services, by endpoint
  kpctl connections shop/web -o wide   one Service, flow by flow
  kpctl connections 10.96.0.10:80      by where traffic arrives
  kpctl connections --stale            only flows to endpoints not used any more
  kpctl connections --bundle FILE      as it was when the bundle was written
\b
Flows come from conntrack; in ipvs mode from IPVS, in userspace mode from the
proxy, and neither counts bytes. Conntrack counts them only after
  sysctl -w net.netfilter.nf_conntrack_acct=1
\b
Exit codes:
  0  shown
  1  failed: no proxy answers, or the kernel refused
  2  the command line is wrong
  3  with --stale: there are stale flows
  4  there is no such Service
"""


@click.command(epilog=EPILOG)
@click.argument("service", default="")
@about_a_proxy
@click.option("-n", "--namespace", default="", help="only Services of this namespace")
@click.option("--stale", is_flag=True, help="only flows to endpoints that are no longer used")
@click.option(
    "--limit",
    type=click.IntRange(0, MOST_FLOWS),
    help=f"how many single flows to show (default: {DEFAULT_FLOWS} with -o wide, else 0)",
)
@output_option
def connections(
    service: str, place: Place, namespace: str, stale: bool, limit: int | None, output: str
) -> None:
    """Show the flows of Services by endpoint, and which are stale.

    SERVICE is NAME, NAMESPACE/NAME, ADDRESS:PORT or a node port.
    """
    from kpctl.connections.select import parse_selection

    try:
        selection = parse_selection(service, namespace)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if limit is None:
        limit = DEFAULT_FLOWS if output == "wide" else 0
    groups, is_cut = _gather(place, selection, limit)
    if stale:
        groups = [group for group in groups if group.stale]
    _print(groups, output, cut_at=limit if is_cut else 0)
    if stale and groups:
        raise SystemExit(STALE)


def _gather(place: Place, selection: Selection, limit: int) -> tuple[list[EndpointFlows], bool]:
    from kpctl.connections.gather import gather
    from kpctl.snapshot.client import Client, find_socket

    snapshot = place.read(selection.service)
    chosen = {(family, p.id) for family, p in snapshot.plans() if selection.matches(p)}
    if not chosen and (selection.name or selection.port):
        click.echo(f"Error: no such Service on {snapshot.origin}", err=True)
        raise SystemExit(UNKNOWN)
    if place.bundle:
        return _recorded(place.bundle, None if selection.is_everything else chosen), False
    client = Client(find_socket(place.socket)) if place.is_live else None
    keep = None if selection.is_everything else chosen
    tally = gather(snapshot, client, limit=limit, only=keep)
    return tally.groups(), tally.is_cut


def _recorded(
    bundle: str, only: Collection[tuple[Family, ServicePortId]] | None
) -> list[EndpointFlows]:
    """Return what was shown on the node when the bundle was written."""
    from pathlib import Path

    import msgspec

    from kpctl.connections.flows import EndpointFlows
    from kpctl.snapshot.bundle import read_head

    recorded = read_head(Path(bundle)).connections
    if recorded is None:
        raise click.ClickException(f"{bundle}: it was written without connections")
    groups = msgspec.convert(recorded, type=list[EndpointFlows])
    return [g for g in groups if only is None or (g.owner and (g.family, g.owner) in only)]


def _print(groups: list[EndpointFlows], output: str, *, cut_at: int) -> None:
    from kpctl.connections import view
    from kpctl.look.output import print_data, print_table

    if output in ("json", "yaml"):
        print_data(view.documents(groups), output)
        return
    if output == "wide":
        print_table(view.FLOW_HEADINGS, view.flow_rows(groups))
    else:
        print_table(view.HEADINGS, view.rows(groups))
    click.echo(view.summary(groups), err=True)
    if cut_at and output == "wide":
        click.echo(f"Only {cut_at} flows are shown; --limit shows up to {MOST_FLOWS}", err=True)
