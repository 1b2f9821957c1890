"""The commands `kpctl status`, `get`, `explain` and `render`: options in, exit code out.

Everything else is imported when a command runs, so that `kpctl --help` stays quick.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kpctl.look.cli import end_if_rejected
from kpctl.look.exits import NOT_FOUND, TROUBLE, epilog
from kpctl.look.output import print_text
from kpctl.snapshot.options import Place, about_a_proxy, output_option
from kubeproxy.modes.registry import mode_names

if TYPE_CHECKING:
    from kpctl.report.types import Explanation
    from kpctl.snapshot.target import Target
    from kpctl.snapshot.types import Snapshot
    from kubeproxy.inspection.types import History, Status

_FILE = click.Path(exists=True, allow_dash=True)
_NAMESPACE = click.option("-n", "--namespace", default="", help="only this namespace")

_STATUS_EXAMPLES = """\
  kpctl status                     the proxy of this node
  kpctl status -o json             the same for a program
  kpctl status --bundle web-1.kpb  as it was when the bundle was made
"""


@click.command(
    epilog=epilog(
        "the proxy is healthy and nothing is refused",
        examples=_STATUS_EXAMPLES,
        trouble="a sync is overdue or failed, a collection cannot be watched, or a service port is"
        " refused",
    )
)
@about_a_proxy
@output_option
def status(place: Place, output: str) -> None:
    """Show how a proxy is doing, on one screen.

    Mode and versions, the connection to the API server, the last rounds, how long changes take,
    what is refused or cannot be used, and what had to be repaired.
    """
    from kpctl.report.status import status_report
    from kpctl.report.statustext import status_text

    report = status_report(*_status_of(place))
    if output in ("json", "yaml"):
        _print_data(report, output)
    else:
        from kpctl.look.output import print_paragraphs

        print_paragraphs(status_text(report, is_wide=output == "wide"))
    if report.troubles:
        sys.exit(TROUBLE)


def _status_of(place: Place) -> tuple[str, Status, History]:
    """Ask for no more than is shown: Services are not."""
    if place.files:
        raise click.UsageError("manifests have no status; use a running proxy or --bundle")
    if place.bundle:
        snapshot = place.read()
        assert snapshot.status is not None and snapshot.history is not None
        return snapshot.origin, snapshot.status, snapshot.history
    from contextlib import closing

    from kpctl.snapshot.client import Client, find_socket

    with closing(Client(find_socket(place.socket))) as client:
        found = client.status()
        return f"kube-proxy on node {found.node}", found, client.history()


_GET_EXAMPLES = """\
  kpctl get                        every Service
  kpctl get shop/web               one Service
  kpctl get -n shop -o wide        a namespace, with policies and slices
  kpctl get 10.96.0.10:80          what is served at this address and port
  kpctl get --pod 10.244.1.5       the Services of a pod
  kpctl get -f objects.yaml --mode nftables   what a proxy would make of manifests
"""


@click.command(
    epilog=epilog("done", examples=_GET_EXAMPLES, absent="nothing matches"),
)
@click.argument("name", default="")
@_NAMESPACE
@click.option("--pod", default="", help="only Services with an endpoint at this address")
@about_a_proxy
@output_option
def get(name: str, namespace: str, pod: str, place: Place, output: str) -> None:
    """List Services as they are programmed: where they arrive, endpoints, last change.

    NAME is web, shop/web, shop/web:http, an address and port, or a node port.
    """
    from kpctl.report.services import HEADINGS, WIDE_HEADINGS, programmed, rows
    from kpctl.snapshot.target import Target, parse_pod, parse_target

    _use_sentences()
    target = parse_target(name, namespace) if name else Target(namespace=namespace)
    snapshot = place.read(target.service)
    reports = programmed(snapshot, target, parse_pod(pod))
    if output in ("json", "yaml"):
        _print_data(reports, output)
    elif reports:
        from kpctl.look.output import print_table

        is_wide = output == "wide"
        cells = rows(reports, snapshot, is_wide=is_wide)
        print_table(WIDE_HEADINGS if is_wide else HEADINGS, cells)
    else:
        asked = f" {target.text}" if target.text else ""
        print_text(f"No Service{asked} is served here; `kpctl explain` tells more.", err=True)
    _end(snapshot, 0 if reports else NOT_FOUND)


_EXPLAIN_EXAMPLES = """\
  kpctl explain shop/web                    all about a Service
  kpctl explain 10.96.0.10:80               who is behind this address
  kpctl explain 30080                       and behind this node port
  kpctl explain shop/web --from 10.244.1.5  for this client: is it allowed?
  kpctl explain shop/web --from outside     for a client outside the cluster
  kpctl explain shop/web -f objects.yaml    what a proxy would do with manifests
"""


@click.command(
    epilog=epilog(
        "every connection that was asked about reaches an endpoint",
        examples=_EXPLAIN_EXAMPLES,
        trouble="found, but a connection is rejected or dropped, or the kernel refuses it",
        absent="no Service is found; the reasons that are possible are shown",
    )
)
@click.argument("target", metavar="SERVICE|VIP:PORT|NODE-PORT")
@_NAMESPACE
@click.option(
    "--from",
    "source",
    default="",
    metavar="POD-IP|node|outside",
    help="the client to explain it for (default: one of each kind)",
)
@about_a_proxy
@output_option
def explain(target: str, namespace: str, source: str, place: Place, output: str) -> None:
    """Explain a Service: every endpoint in or out, every decision, the reasons, the history.

    Ask for web, shop/web, shop/web:http, an address and port such as 10.96.0.10:80 or
    [fd00::10]:53/udp, or a node port. A name without a namespace is in `default`, or in the only
    namespace that has it.
    """
    from kpctl.report.explain import is_served
    from kpctl.report.sources import check_source
    from kpctl.snapshot.target import parse_target

    _use_sentences()
    asked, client = parse_target(target, namespace), check_source(source)
    # All Services: the reason may lie with another one, which has the address or the slice.
    snapshot = place.read()
    found = _explained(snapshot, asked, client)
    if output in ("json", "yaml"):
        _print_data(found, output)
    else:
        from kpctl.look.output import print_paragraphs
        from kpctl.report.text import explanation_text

        print_paragraphs(explanation_text(found, is_wide=output == "wide"))
    code = 0 if is_served(found) else TROUBLE
    _end(snapshot, code if found.services else NOT_FOUND)


def _explained(snapshot: Snapshot, target: Target, source: str) -> Explanation:
    """Explain; a name without namespace is in `default`, or in the only one that has it."""
    from msgspec.structs import replace

    from kpctl.report.explain import explain

    if target.namespace or not target.name:
        return explain(snapshot, target, source)
    found = explain(snapshot, replace(target, namespace="default"), source)
    # Also those that have no Service of this name, but slices that name one.
    namespaces = {name.namespace for name in snapshot.names() if name.name == target.name}
    if found.services or len(namespaces) != 1:
        return found
    return explain(snapshot, replace(target, namespace=namespaces.pop()), source)


_RENDER_EXAMPLES = """\
  kpctl render --mode nftables objects.yaml         what a mode would install
  kpctl render --mode nftables objects.yaml | nft -c -f -
  kpctl render --mode iptables --family ipv6 objects.yaml
  kpctl render --service shop/web                   of the running proxy
  kpctl render --service shop/web --no-scaffold     only what is its own
  kpctl render --bundle FILE -o json                line by line, by owner
"""


@click.command(
    epilog=epilog("done", examples=_RENDER_EXAMPLES, absent="no Service has the name of --service")
)
@click.argument("files", nargs=-1, type=_FILE)
@click.option("-f", "--file", "more_files", multiple=True, type=_FILE, help="the same as FILES")
@click.option("--mode", type=click.Choice(mode_names()), help="with FILES: the mode")
@click.option("--config", type=click.Path(exists=True), help="with FILES: a configuration")
@click.option(
    "--node", default="", help="with FILES: the node to look from (default: the only one)"
)
@click.option(
    "--address", multiple=True, help="with FILES: an address of the node (default: what is known)"
)
@click.option("--socket", type=click.Path(path_type=Path), help="without FILES: a proxy's socket")
@click.option("--bundle", type=click.Path(exists=True), help="without FILES: a bundle")
@click.option("--family", type=click.Choice(["ipv4", "ipv6"]), help="only this family")
@click.option("--service", default="", help="only this Service (shop/web)")
@click.option("--no-scaffold", is_flag=True, help="leave out what exists without any Service")
@output_option
def render(
    files: tuple[str, ...],
    more_files: tuple[str, ...],
    mode: str | None,
    config: str | None,
    node: str,
    address: tuple[str, ...],
    socket: Path | None,
    bundle: str | None,
    family: str | None,
    service: str,
    no_scaffold: bool,
    output: str,
) -> None:
    """Print what a mode installs; the kernel is not touched.

    FILES are manifests, directories of manifests, or - for standard input. Without FILES it is
    what a running proxy wants. The text can be loaded where no such rules are: with nft -f, or a
    family with iptables-restore --noflush (in iptables mode without the jumps from built-in
    chains, which upstream writes apart, and after the accounting objects that it names).
    """
    from kpctl.report.rendering import rendered, rendered_lines
    from kpctl.snapshot.target import parse_target

    _use_sentences()
    files = (*files, *more_files)
    only = parse_target(service).service if service else None
    if service and only is None:
        raise click.BadParameter("a Service is written as shop/web", param_hint="--service")
    if files and (socket or bundle):
        raise click.UsageError("FILES are instead of --socket and --bundle")
    if files:
        snapshot = _from_files(files, mode, config, node=node, addresses=address)
    else:
        place = Place(socket=socket, bundle=bundle, mode=mode, config=config, node=node)
        snapshot = place.read(only)
    if output in ("json", "yaml"):
        has_scaffold = not no_scaffold
        lines = rendered_lines(snapshot, family=family, only=only, has_scaffold=has_scaffold)
        _print_data(lines, output)
    else:
        text = rendered(snapshot, family=family, only=only, has_scaffold=not no_scaffold)
        print_text(text, nl=False)
    is_absent = only is not None and only not in snapshot.names()
    if is_absent:
        print_text(f"Error: No Service {only} is served here.", err=True)
    _end(snapshot, NOT_FOUND if is_absent else 0)


def _from_files(
    files: tuple[str, ...],
    mode: str | None,
    config: str | None,
    *,
    node: str,
    addresses: tuple[str, ...],
) -> Snapshot:
    from kpctl.look.cli import offline_request
    from kpctl.snapshot.files import read_files

    if mode is None:
        raise click.UsageError("--mode is needed with FILES")
    return read_files(offline_request(files, config, node=node, mode=mode, addresses=addresses))


def _print_data(report: object, form: str) -> None:
    import msgspec

    from kpctl.look.output import print_data

    print_data(msgspec.to_builtins(report), form)


def _end(snapshot: Snapshot, code: int) -> None:
    """End; an object that is rejected shows in the exit code if nothing else does."""
    if not code:
        end_if_rejected(snapshot.rejected, "what is shown is without it")
    sys.exit(code)


def _use_sentences() -> None:
    from kpctl.look.sentences import use_sentences

    use_sentences()
