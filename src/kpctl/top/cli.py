"""The command `kpctl top`: options in, a live view or one sample out."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kpctl.look.exits import epilog
from kpctl.look.output import print_text
from kpctl.snapshot.options import output_option

if TYPE_CHECKING:
    from kpctl.snapshot.target import Target
    from kpctl.top.sample import Sample
    from kpctl.top.watch import Watch

_LINES_BESIDES_ROWS = 9

_EXAMPLES = """\
  kpctl top                      live, until q or Ctrl-C
  kpctl top -n shop              only Services of one namespace
  kpctl top shop/web --once      one Service, one sample
  kpctl top --pod 10.244.1.5     only service ports that this pod serves
  kpctl top -o json -i 10        ten seconds, for a program
  kpctl top --bundle FILE        as it was when the bundle was written

New connections come from conntrack events, in userspace mode from the proxy.
Refused packets are counted by rules of iptables and userspace mode, and in
nftables and ipvs mode if kube-proxy has --service-metrics.
"""


@click.command(
    epilog=epilog("shown", examples=_EXAMPLES, absent="there is no such Service", has_files=False)
)
@click.argument("service", default="")
@click.option("--socket", type=click.Path(path_type=Path), help="the socket of a proxy")
@click.option("--bundle", type=click.Path(exists=True), help="a file of kpctl bundle")
@click.option("-n", "--namespace", default="", help="only Services of this namespace")
@click.option("--pod", default="", help="only service ports with connections to this address")
@click.option(
    "-i", "--interval", type=click.FloatRange(0.1, 3600), default=1.0, help="seconds per sample"
)
@click.option("--once", is_flag=True, help="print one sample (as when piped)")
@output_option
def top(
    service: str,
    socket: Path | None,
    bundle: str | None,
    namespace: str,
    pod: str,
    interval: float,
    once: bool,
    output: str,
) -> None:
    """Show new connections per Service and endpoint, refusals, and what rounds cost.

    SERVICE is web, shop/web, shop/web:http, an address and port, or a node port.
    """
    from kpctl.snapshot.target import Target, parse_pod, parse_target
    from kpctl.top.watch import Watch

    target = parse_target(service, namespace) if service else Target(namespace=namespace)
    address = parse_pod(pod)
    if bundle and socket:
        raise click.UsageError("of --socket and --bundle only one can be given")
    if bundle:
        _print(*_recorded(Path(bundle), target, address), output)
        return
    with closing(Watch(socket, target, pod=address)) as watch:
        if once or output in ("json", "yaml") or not sys.stdout.isatty():
            sample = watch.sample(interval)
            _print(watch.snapshot.origin, watch.snapshot.mode, sample, output)
        else:
            _show_live(watch, interval)


def _recorded(bundle: Path, target: Target, pod: str) -> tuple[str, str, Sample]:
    """Return where a bundle comes from, its mode, and the sample that was taken for it."""
    import msgspec

    from kpctl.snapshot.bundle import read_bundle, read_head
    from kpctl.snapshot.target import service_ports
    from kpctl.top.sample import Sample, chosen

    recorded = read_head(bundle).sample
    if recorded is None:
        raise click.ClickException(f"{bundle}: it was written without a sample of connections")
    snapshot = read_bundle(bundle)
    sample = msgspec.convert(recorded, type=Sample)
    return snapshot.origin, snapshot.mode, chosen(sample, service_ports(snapshot, target), pod)


def _print(origin: str, mode: str, sample: Sample, output: str) -> None:
    from kpctl.look.output import print_data
    from kpctl.top.view import document, lines

    if output in ("json", "yaml"):
        print_data(document(origin, mode, sample), output)
    else:
        print_text("\n".join(lines(origin, mode, sample)))


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
