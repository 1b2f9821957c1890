"""The commands `kpctl plan`, `check`, `apply` and `cleanup`: options in, exit code out.

Everything else is imported when a command runs, so that `kpctl --help` stays quick.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from msgspec.structs import replace

from kpctl.look.exits import EPILOG, FAILED, NOT_AGREED, REJECTED
from kpctl.look.output import print_text
from kubeproxy.modes.registry import load_mode, mode_names

if TYPE_CHECKING:
    from kpctl.look.apply import Outlook
    from kpctl.look.offline import Evaluation, OfflineRequest
    from kpctl.look.planview import NodePorts
    from kubeproxy.sync.report import RoundReport

F = TypeVar("F", bound=Callable[..., object])
_FILE = click.Path(exists=True, allow_dash=True)
_MODES = click.Choice(mode_names())


def _about_objects(command: F) -> F:
    """Add the options of every command that reads manifests."""
    for option in reversed(
        (
            click.argument("files", nargs=-1, required=True, type=_FILE),
            click.option("--config", type=click.Path(exists=True), help="a KubeProxyConfiguration"),
            click.option(
                "--node", default="", help="the node to look from (default: the only one)"
            ),
        )
    ):
        command = option(command)
    return command


class _Rejected(click.ClickException):
    """Part of the input cannot be used."""

    exit_code = REJECTED


class _NotAgreed(click.ClickException):
    """Nothing was changed: it needs a person's agreement."""

    exit_code = NOT_AGREED


_mode_option = click.option("--mode", type=_MODES, required=True)
_address_option = click.option(
    "--address", multiple=True, help="an address of the node (default: what is known of it)"
)


@click.command(epilog=EPILOG)
@_about_objects
@click.option("--mode", type=_MODES, help="the mode (default: as configured, else iptables)")
@_address_option
@click.option("-o", "--output", type=click.Choice(["table", "yaml", "json"]), default="table")
def plan(
    files: tuple[str, ...],
    config: str | None,
    node: str,
    mode: str | None,
    address: tuple[str, ...],
    output: str,
) -> None:
    """Print what is decided about each Service port, with the reasons.

    FILES are manifests, directories of manifests, or - for standard input.
    """
    from kpctl.look.offline import check_node, evaluate
    from kpctl.look.planview import NodePorts
    from kubeproxy.sync.clock import SystemClock

    _use_sentences()
    request = offline_request(files, config, node=node, mode=mode or "", addresses=address)
    evaluation = evaluate(request, None, SystemClock())
    check_node(node, evaluation)
    nodes = [pipeline.node for pipeline in evaluation.pipelines.values()]
    node_ports = NodePorts.of(evaluation.settings, nodes)
    _print_plans(evaluation, node_ports, output)
    end_if_rejected(evaluation.rejected, "what is shown is without it")


def _print_plans(evaluation: Evaluation, node_ports: NodePorts, output: str) -> None:
    from kpctl.look.planview import plan_document, plan_rows

    plans = evaluation.plans()
    if output == "table":
        from kpctl.look.plantext import print_rows

        mode = evaluation.settings.config.mode
        print_text(f"Services as node {evaluation.node} sees them in {mode} mode")
        print_rows(plan_rows(plans, node_ports), sys.stdout)
        return
    from kpctl.look.output import print_data

    print_data([plan_document(family, plan, node_ports) for family, plan in plans], output)


@click.command(
    epilog="""\b
Examples:
  kpctl check services.d
  kpctl check --strict --mode nftables web.yaml && cp web.yaml services.d/

\b
Exit codes:
  0  everything can be used
  2  the command line is wrong
  3  part of it cannot be used, or with --strict has no effect
"""
)
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option("--mode", type=_MODES, help="the mode that will use them (default: iptables)")
@click.option("--strict", is_flag=True, help="what has no effect is an error, too")
def check(files: tuple[str, ...], mode: str | None, strict: bool) -> None:
    """Check manifests, in the short form or as objects, and print what is wrong with them.

    FILES are manifests, directories of manifests, or - for standard input. Nothing is changed, and
    host names are not looked up.
    """
    from kpctl.look.check import check_files

    _use_sentences()
    found = check_files(tuple(map(Path, files)), mode or "")
    end_if_rejected(found.rejected, "the rest can be used")
    if found.noted and strict:
        raise _Rejected("Part of the files has no effect, see the notes above.")
    noun = "Service" if found.services == 1 else "Services"
    print_text(f"{found.services} {noun} can be used.")


@click.command(epilog=EPILOG)
@_mode_option
@_about_objects
@click.option("--dry-run", is_flag=True, help="print what would change, and change nothing")
@click.option("--prune", is_flag=True, help="remove Services that the files do not name")
@click.option("--force", is_flag=True, help="apply although a kube-proxy is running here")
def apply(
    files: tuple[str, ...],
    config: str | None,
    node: str,
    mode: str,
    dry_run: bool,
    prune: bool,
    force: bool,
) -> None:
    """Do one full sync in the current network namespace, and exit.

    FILES are manifests, directories of manifests, or - for standard input. They are all that is
    served afterwards: Services that they do not name are removed, if you agree.
    """
    import asyncio

    from kpctl.look.apply import apply_input
    from kpctl.look.offline import build_engines, check_node, read_input
    from kubeproxy.sync.clock import SystemClock

    _use_sentences()
    if mode == "userspace":
        raise click.UsageError(
            "userspace mode cannot be applied: its rules lead to sockets of a process that serves"
            " them, and this command ends. Run kube-proxy --proxy-mode=userspace --manifests=..."
        )
    request = offline_request(files, config, node=node, mode=mode, is_here=True)
    given = read_input(request)
    _, evaluation = build_engines(given, None, SystemClock())
    check_node(node, evaluation)
    end_if_rejected(evaluation.rejected, "nothing was changed")
    _check_daemons(is_allowed=force or dry_run)

    def agree(outlook: Outlook) -> bool:
        if dry_run:
            _print_diff(outlook, prune=prune)
        elif outlook.unnamed and not prune:
            _ask(outlook.unnamed, can_ask=sys.stdin.isatty() and "-" not in files)
        return not dry_run

    _print_reports(asyncio.run(apply_input(given, load_mode(mode), SystemClock(), agree)))


def _check_daemons(*, is_allowed: bool) -> None:
    """Notice daemons that program the same namespace: each would undo what the other does."""
    from kubeproxy.run.presence import running_proxies

    found = ", ".join(running_proxies())
    if not found:
        return
    text = f"{found} is running in this network namespace and keeps its own rules"
    if is_allowed:
        print_text(f"Note: {text}.", err=True)
    else:
        raise _NotAgreed(
            f"{text}. Nothing was changed. Change its manifests or its API objects, stop it first,"
            " or use --force to apply all the same."
        )


def _print_diff(outlook: Outlook, *, prune: bool) -> None:
    from kpctl.look.apply import diff_lines

    lines = list(diff_lines(outlook))
    print_text("\n".join(lines) if lines else "Nothing would change.")
    if outlook.unnamed and not prune:
        names = _list(outlook.unnamed)
        print_text(f"Note: Applying this needs --prune, because it removes {names}.", err=True)


def _ask(unnamed: tuple[str, ...], *, can_ask: bool) -> None:
    """Return if the person agrees to the removal."""
    print_text(f"In the kernel, but not in these files: {_list(unnamed)}.", err=True)
    if can_ask and click.confirm("Remove them?", err=True):
        return
    raise _NotAgreed("Nothing was changed. Name these Services too, or agree with --prune.")


def _list(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def _print_reports(reports: list[RoundReport]) -> None:
    for report in reports:
        print_text(
            f"{report.family.value}: {report.services} services, {report.changes} changes in"
            f" {report.batches} batches, {report.duration_seconds * 1000:.1f} ms"
        )
        if report.failure_text:
            print_text(f"Error: {report.family.value}: {report.failure_text}", err=True)
    if any(not report.is_success for report in reports):
        sys.exit(FAILED)


@click.command()
@click.option("--mode", "modes", type=_MODES, multiple=True)
def cleanup(modes: tuple[str, ...]) -> None:
    """Remove everything kube-proxy installed (of all modes, or those named)."""
    import asyncio

    from kpctl.look.cleanup import remains
    from kubeproxy.run.app import clean_up

    _use_sentences()
    _check_daemons(is_allowed=True)
    asyncio.run(clean_up(modes or mode_names()))
    print_text("Removed what was ours; nothing else was touched.")
    for text in asyncio.run(remains()):
        print_text(f"Stays: {text}.")


def offline_request(
    files: tuple[str, ...],
    config: str | None,
    *,
    node: str,
    mode: str = "",
    addresses: tuple[str, ...] = (),
    is_here: bool = False,
) -> OfflineRequest:
    """What a command about manifests asks for, seen from this host."""
    from kpctl.look.offline import OfflineRequest
    from kubeproxy.facts.node import SERVICE_LINK
    from kubeproxy.kernel.route.table import default_route_sources, host_addresses
    from kubeproxy.run.startup import main_addresses

    request = OfflineRequest(
        files=tuple(map(Path, files)),
        config=Path(config) if config else None,
        mode=mode,
        node=node,
        addresses=addresses,
        is_here=is_here,
    )
    if addresses:
        return request
    found = host_addresses(without_links={SERVICE_LINK})
    return replace(
        request,
        addresses=tuple(address for group in found.values() for address in group),
        main_addresses=main_addresses(found, default_route_sources()),
    )


def end_if_rejected(rejected: int, consequence: str) -> None:
    """End with an exit code of its own if part of the input cannot be used."""
    if rejected:
        subject = "One object or file is" if rejected == 1 else f"{rejected} objects or files are"
        raise _Rejected(f"{subject} rejected; {consequence}.")


def _use_sentences() -> None:
    from kpctl.look.sentences import use_sentences

    use_sentences()
