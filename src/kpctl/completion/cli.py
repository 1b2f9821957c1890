"""The command `kpctl completion`: prints a script for a shell."""

from __future__ import annotations

import click

PROGRAMS = ("kpctl", "kube-proxy")
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.option(
    "--for",
    "program",
    type=click.Choice(PROGRAMS),
    default=PROGRAMS[0],
    show_default=True,
    help="the command to complete",
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, program: str, shell: str) -> None:
    """Print a script that completes commands and options in a shell."""
    from kpctl.completion.program import kube_proxy, of_click
    from kpctl.completion.shells import SHELLS

    root = context.find_root().command
    command = kube_proxy() if program == "kube-proxy" else of_click(root, "kpctl")
    click.echo(SHELLS[shell](command), nl=False)
