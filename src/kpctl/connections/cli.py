"""The command `kpctl connections`: options in, exit code out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kpctl.look.exits import TROUBLE, epilog
from kpctl.look.output import print_text
from kpctl.snapshot.options import Place, about_a_proxy, output_option

if TYPE_CHECKING:
    from collections.abc import Collection

    from kpctl.connections.flows import EndpointFlows
    from kpctl.snapshot.target import Target
    from kpctl.snapshot.types import Snapshot
    from kubeproxy.facts.ids import Family, ServicePortId

DEFAULT_FLOWS = 100
MOST_FLOWS = 1000

_EXAMPLES = """\
  kpctl connections                    all Services, by endpoint
  kpctl connections shop/web -o wide   one Service, flow by flow
  kpctl connections 10.96.0.10:80      by where traffic arrives
  kpctl connections --pod 10.244.1.5   flows to one pod
  kpctl connections --stale            only flows to endpoints not used any more
  kpctl connections --bundle FILE      as it was when the bundle was written

Flows come from conntrack; in ipvs mode from IPVS, in userspace mode from the
proxy, and neither counts bytes. Conntrack counts them only after
  sysctl -w net.netfilter.nf_conntrack_acct=1
"""


@click.command(
    epilog=epilog(
        "shown",
        examples=_EXAMPLES,
        trouble="with --stale: there are stale flows",
        absent="there is no such Service",
    )
)
@click.argument("service", default="")
@about_a_proxy
@click.option("-n", "--namespace", default="", help="only Services of this namespace")
@click.option("--pod", default="", help="only flows to this address")
@click.option("--stale", is_flag=True, help="only flows to endpoints that are no longer used")
@click.option(
    "--limit",
    type=click.IntRange(0, MOST_FLOWS),
    help=f"how many single flows to show (default: {DEFAULT_FLOWS} with -o wide, else 0)",
)
@output_option
def connections(
    service: str,
    place: Place,
    namespace: str,
    pod: str,
    stale: bool,
    limit: int | None,
    output: str,
) -> None:
    """Show the flows of Services by endpoint, and which are stale.

    SERVICE is web, shop/web, shop/web:http, an address and port, or a node port.
    """
    from kpctl.connections.flows import is_at
    from kpctl.look.cli import end_if_rejected
    from kpctl.look.sentences import use_sentences
    from kpctl.snapshot.target import Target, parse_pod, parse_target

    use_sentences()
    target = parse_target(service, namespace) if service else Target(namespace=namespace)
    address = parse_pod(pod)
    if limit is None:
        limit = DEFAULT_FLOWS if output == "wide" else 0
    snapshot = place.read(target.service)
    groups, is_cut = _gather(place, snapshot, target, limit)
    if address:
        groups = [group for group in groups if is_at(group.endpoint, address)]
    if stale:
        groups = [group for group in groups if group.stale]
    _print(groups, output, cut_at=limit if is_cut else 0)
    if stale and groups:
        raise SystemExit(TROUBLE)
    end_if_rejected(snapshot.rejected, "what is shown is without it")


def _gather(
    place: Place, snapshot: Snapshot, target: Target, limit: int
) -> tuple[list[EndpointFlows], bool]:
    from kpctl.connections.gather import gather
    from kpctl.snapshot.client import Client, find_socket
    from kpctl.snapshot.target import service_ports

    chosen = service_ports(snapshot, target)
    if place.bundle:
        return _recorded(place.bundle, chosen), False
    client = Client(find_socket(place.socket)) if place.is_live else None
    tally = gather(snapshot, client, limit=limit, only=chosen)
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
    print_text(view.summary(groups), err=True)
    if cut_at and output == "wide":
        print_text(f"Only {cut_at} flows are shown; --limit shows up to {MOST_FLOWS}", err=True)
