"""`kpctl`: the tool for people. Each command is a thin layer over a function that tests call.

Heavy imports (rich, yaml, engines, the lab) happen inside the command that needs them, so that
`kpctl --help` stays quick.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from kpctl.bench.cli import bench
from kpctl.demo.cli import demo, lab
from kubeproxy.errors import ProxyError
from kubeproxy.modes.registry import load_mode, mode_names
from kubeproxy.version import KUBERNETES_VERSION, PACKAGE_VERSION

if TYPE_CHECKING:
    from kpctl.look.offline import OfflineRequest

F = TypeVar("F", bound=Callable[..., object])


class _Commands(click.Group):
    """Shows errors of ours as one clear line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ProxyError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    PACKAGE_VERSION, message=f"kpctl %(version)s (kube-proxy {KUBERNETES_VERSION})"
)
def main() -> None:
    """Look at, try out and take apart what kube-proxy does with Services."""


main.add_command(bench)
main.add_command(demo)
main.add_command(lab)


def _about_objects(command: F) -> F:
    """Add the options of every command that reads manifests."""
    for option in reversed(
        (
            click.argument("files", nargs=-1, required=True, type=click.Path(exists=True)),
            click.option("--config", type=click.Path(exists=True), help="a KubeProxyConfiguration"),
            click.option(
                "--node", default="", help="the node to look from (default: the only one)"
            ),
        )
    ):
        command = option(command)
    return command


_mode_option = click.option("--mode", type=click.Choice(mode_names()), required=True)


@main.command()
@_about_objects
@click.option("-o", "--output", type=click.Choice(["table", "yaml", "json"]), default="table")
def plan(files: tuple[str, ...], config: str | None, node: str, output: str) -> None:
    """Print what is decided about each Service port, with the reasons."""
    from kpctl.look.offline import evaluate
    from kpctl.look.planview import plan_document
    from kubeproxy.sync.clock import SystemClock

    _show_problems()
    evaluation = evaluate(_request(files, config, node=node), None, SystemClock())
    plans = evaluation.plans()
    documents = [plan_document(family, plan) for family, plan in plans]
    if output == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(documents), indent=2))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump_all(documents, sort_keys=False), nl=False)
    else:
        from rich.console import Console

        from kpctl.look.planview import plan_table

        Console().print(plan_table(plans, evaluation.node))


@main.command()
@_mode_option
@_about_objects
@click.option("--address", multiple=True, help="an address of the host (default: its own)")
def render(
    files: tuple[str, ...], config: str | None, node: str, mode: str, address: tuple[str, ...]
) -> None:
    """Print what a mode would install; the kernel is not touched."""
    from kpctl.look.offline import render_text
    from kubeproxy.sync.clock import SystemClock

    _show_problems()
    request = _request(files, config, node=node, mode=mode, addresses=address)
    click.echo(render_text(request, load_mode(mode), SystemClock()), nl=False)


@main.command()
@_mode_option
@_about_objects
def apply(files: tuple[str, ...], config: str | None, node: str, mode: str) -> None:
    """Do one full sync in the current network namespace, and exit."""
    import asyncio

    from kpctl.look.apply import apply_once
    from kubeproxy.sync.clock import SystemClock

    _show_problems()
    request = _request(files, config, node=node, mode=mode)
    reports = asyncio.run(apply_once(request, load_mode(mode), SystemClock()))
    for report in reports:
        click.echo(
            f"{report.family.value}: {report.services} services, {report.changes} changes in"
            f" {report.batches} batches, {report.duration_seconds * 1000:.1f} ms"
        )
        for failure in report.failures:
            click.echo(f"{report.family.value}: {failure.owner} {failure.message}", err=True)
    if any(not report.is_success for report in reports):
        sys.exit(1)


@main.command()
@click.option("--mode", "modes", type=click.Choice(mode_names()), multiple=True)
def cleanup(modes: tuple[str, ...]) -> None:
    """Remove everything kube-proxy installed (of all modes, or those named)."""
    import asyncio

    from kubeproxy.run.app import clean_up

    _show_problems()
    asyncio.run(clean_up(modes or mode_names()))
    click.echo("Removed what was ours; nothing else was touched.")


def _request(
    files: tuple[str, ...],
    config: str | None,
    *,
    node: str,
    mode: str = "",
    addresses: tuple[str, ...] = (),
) -> OfflineRequest:
    from kpctl.look.offline import OfflineRequest
    from kubeproxy.facts.node import SERVICE_LINK
    from kubeproxy.kernel.route.table import host_addresses

    own = addresses or tuple(
        address
        for found in host_addresses(without_links={SERVICE_LINK}).values()
        for address in found
    )
    return OfflineRequest(
        files=tuple(map(Path, files)),
        config=Path(config) if config else None,
        mode=mode,
        node=node,
        addresses=own,
    )


def _show_problems() -> None:
    """Log problems with objects to stderr, as the daemon does."""
    from kubeproxy.logs import LogOptions, setup_logging

    setup_logging(LogOptions())
