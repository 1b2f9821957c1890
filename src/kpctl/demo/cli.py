"""The commands `kpctl lab` and `kpctl demo`: options in, exit code out.

Everything else is imported when a command runs, so that `kpctl --help` stays quick.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from kubeproxy.modes.registry import mode_names

_MODE = click.option(
    "--mode",
    type=click.Choice(mode_names()),
    default="nftables",
    show_default=True,
    help="the proxy mode to run",
)
_FILE = click.Path(exists=True, path_type=Path)


class _FlowName(click.ParamType[Path]):
    """A flow of the corpus by name, or a file."""

    name = "flow"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "NAME|FILE"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from kpctl.flows.library import find_flow

        return find_flow(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from kpctl.flows.library import flow_names

        return [CompletionItem(name) for name in flow_names() if name.startswith(incomplete)]


@click.command()
@_MODE
def demo(mode: str) -> None:
    """Show a small cluster, live traffic, a failing endpoint; exits 0 if all of it was true."""
    from kpctl.demo.run import run_demo

    sys.exit(run_demo(mode))


@click.command(context_settings={"ignore_unknown_options": True})
@_MODE
@click.option("--topology", type=_FILE, help="a YAML file of nodes, pods and clients")
@click.option("--manifests", type=_FILE, help="objects to start with instead of a sample Service")
@click.option("--flow", type=_FlowName(), help="run this flow and say whether it holds")
@click.option(
    "--variant",
    type=click.Choice(["IPv4", "IPv6", "dual"]),
    default="dual",
    show_default=True,
    help="the families of a flow's objects",
)
@click.option("--kubernetes", is_flag=True, help="a real cluster: API server, kubelets, containers")
@click.option(
    "--proxy",
    type=click.Choice(["ours", "upstream"]),
    default="ours",
    show_default=True,
    help="the kube-proxy that a real cluster runs",
)
@click.option("--image", type=_FILE, help="our image as an archive (default: of `make image`)")
@click.option("--on", default="", help="the host a COMMAND runs on (default: the first node)")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def lab(
    mode: str,
    topology: Path | None,
    manifests: Path | None,
    flow: Path | None,
    variant: str,
    kubernetes: bool,
    proxy: str,
    image: Path | None,
    on: str,
    command: tuple[str, ...],
) -> None:
    """Open a cluster of network namespaces; with a COMMAND, run it there and close it again."""
    if kubernetes:
        if topology or manifests or flow or on:
            raise click.UsageError("--kubernetes has nodes and objects of its own")
        sys.exit(_run_kubernetes(mode, proxy, image, command))
    from kpctl.demo.lab import LabOptions, run_lab

    sys.exit(
        run_lab(
            LabOptions(
                mode=mode,
                topology=topology,
                manifests=manifests,
                flow=flow,
                variant=variant,
                on=on,
                command=command,
            )
        )
    )


def _run_kubernetes(mode: str, proxy: str, image: Path | None, command: tuple[str, ...]) -> int:
    from kpctl.kubernetes.cluster import ClusterOptions
    from kpctl.kubernetes.lab import find_image, run_cluster

    options = ClusterOptions(image=image or find_image(), mode=mode, proxy=proxy)
    return run_cluster(options, command)
