"""The command `kpctl drift`: options in, exit code out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kpctl.look.output import print_text
from kpctl.snapshot.options import Place, about_a_proxy, output_option
from kubeproxy.errors import ProxyError

if TYPE_CHECKING:
    from kpctl.drift.compare import Shown
    from kpctl.drift.view import Report

DIFFERS = 1
NOT_COMPARED = 3

EPILOG = """\b
Examples:
  kpctl drift                     compare now, and show the last repairs
  kpctl drift shop/web            of one Service (also by address and port)
  kpctl drift -o wide             every line, and who else is on the hooks
  kpctl drift --watch 10          compare every 10 seconds
  kpctl drift -o json             for programs
  kpctl drift --bundle node-a.kpctl
                                  the same from a file, offline
  kpctl drift --bundle node-a.kpctl --now
                                  this kernel against what was wanted then
  kpctl drift -f manifests/ --mode nftables --node node-a
                                  against files, without a proxy

\b
Exit codes:
  0  the kernel is as wanted
  1  it differs
  2  the command line is wrong
  3  not compared: no proxy answers, or the kernel cannot be read
  7  there is no such Service
"""


class _NotCompared(click.ClickException):
    exit_code = NOT_COMPARED


@click.command(epilog=EPILOG)
@click.argument("service", default="")
@click.option("-n", "--namespace", default="", help="only Services of this namespace")
@about_a_proxy
@output_option
@click.option("--watch", type=click.FloatRange(min=1), metavar="SECONDS", help="compare repeatedly")
@click.option("--now", is_flag=True, help="with --bundle: read this kernel instead of the file's")
def drift(
    service: str, namespace: str, place: Place, output: str, watch: float | None, now: bool
) -> None:
    """Compare what the kernel has with what is wanted: all of it, or of SERVICE only.

    Shown are the differences by owner, as a diff from what the kernel has to what is wanted, and
    the repairs that the proxy made: when, of how much, and who had changed it, where that is
    known. A difference counts only if it is still there after a second look.

    Where a proxy hangs or has gone, a bundle that it wrote before tells what it wanted: `--now`
    compares that with this kernel. What has changed in the cluster since then differs, too.
    """
    import time

    from kpctl.snapshot.target import NothingFound, WrongQuestion

    if now and not place.bundle:
        raise click.UsageError("--now goes with --bundle; without one this kernel is read anyway")
    if watch and place.bundle and not now:
        raise click.UsageError("a bundle does not change: --watch goes with a running proxy")
    while True:
        try:
            report = _report(place, _shown(service, namespace, output), now=now)
        except (NothingFound, WrongQuestion):
            raise
        except ProxyError as error:
            raise _NotCompared(str(error)) from error
        _print(report, output)
        if not watch:
            break
        sys.stdout.flush()
        try:
            time.sleep(watch)
        except KeyboardInterrupt:
            break
    if report.differs:
        sys.exit(DIFFERS)


def _shown(service: str, namespace: str, output: str) -> Shown:
    from kpctl.drift.compare import Shown
    from kpctl.drift.view import MOST_OWNERS
    from kpctl.snapshot.target import Target, parse_target

    target = parse_target(service, namespace) if service else Target(namespace=namespace)
    return Shown(target, MOST_OWNERS if output == "table" else None)


def _report(place: Place, shown: Shown, *, now: bool) -> Report:
    import asyncio
    import time

    from kpctl.drift.compare import PAUSE_SECONDS
    from kpctl.drift.read import (
        drift_of_bundle,
        drift_of_files,
        drift_of_proxy,
        drift_since_bundle,
    )
    from kpctl.look.cli import offline_request
    from kpctl.look.sentences import use_sentences
    from kpctl.snapshot.bundle import read_head

    use_sentences()

    def pause() -> None:
        time.sleep(PAUSE_SECONDS)

    if now:
        return asyncio.run(drift_since_bundle(place.read(), shown))
    if place.bundle:
        others = read_head(Path(place.bundle)).others
        return drift_of_bundle(place.read(), others, shown)
    if place.files:
        request = offline_request(
            place.files, place.config, node=place.node, mode=place.mode or "", is_here=True
        )
        return asyncio.run(drift_of_files(request, shown))
    return asyncio.run(drift_of_proxy(place.read, pause, shown))


def _print(report: Report, output: str) -> None:
    from kpctl.drift import view
    from kpctl.look.output import print_data, print_paragraphs, print_table

    if output in ("json", "yaml"):
        print_data(view.report_document(report), output)
        return
    is_wide = output == "wide"
    print_paragraphs([(0, view.summary_line(report))])
    for line in view.diff_lines(report.families or (), is_wide=is_wide):
        print_text(line)
    if report.differs and report.queued:
        print_text(f"{report.queued} changes wait for the next round; part of this may be theirs.")
    if report.repairs:
        print_text("\nRepairs")
        print_table(view.REPAIR_HEADINGS, view.repair_rows(report.repairs, is_wide=is_wide))
    if is_wide and report.others is not None:
        print_text("\nOthers on the same hooks")
        rows = view.other_rows(report.others)
        if rows:
            print_table(view.OTHER_HEADINGS, rows)
        else:
            print_text("none")
