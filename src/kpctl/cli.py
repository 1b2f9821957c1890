"""`kpctl`: the tool for people. Each command is a thin layer over a function that tests call.

Heavy imports (rich, yaml, engines, the lab) happen inside the command that needs them, so that
`kpctl --help` stays quick.
"""

from __future__ import annotations

import contextlib
import os
from importlib import import_module
from importlib.util import find_spec

import click

from kpctl.bundle.cli import bundle
from kpctl.completion.cli import completion
from kpctl.connections.cli import connections
from kpctl.dashboard.cli import dashboard
from kpctl.doctor.cli import doctor
from kpctl.drift.cli import drift
from kpctl.look.cli import apply, check, cleanup, plan
from kpctl.look.exits import FAILED
from kpctl.report.cli import explain, get, render, status
from kpctl.top.cli import top
from kpctl.trace.cli import trace
from kubeproxy.errors import ProxyError
from kubeproxy.go.quoting import harmless
from kubeproxy.go.text import format_os_error
from kubeproxy.run.process import open_standard_streams
from kubeproxy.version import KUBERNETES_VERSION, PACKAGE_VERSION


class _Commands(click.Group):
    """Shows errors of ours as one clear line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        open_standard_streams()  # one that is closed would be None for all who print
        try:
            return super().invoke(ctx)
        except ProxyError as error:
            click.ClickException(harmless(str(error))).show()
            ctx.exit(getattr(error, "exit_code", FAILED))
        except BrokenPipeError:
            raise  # click ends quietly
        except OSError as error:
            _drop_output()
            place = f"{error.filename}: " if error.filename else "output cannot be written: "
            raise click.ClickException(f"{place}{format_os_error(error)}") from error


def _drop_output() -> None:
    """Lead standard output nowhere: what is left in its buffer would fail again at the end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    PACKAGE_VERSION, message=f"kpctl %(version)s (kube-proxy {KUBERNETES_VERSION})"
)
def main() -> None:
    """Look at, try out and take apart what kube-proxy does with Services."""


_DESK_COMMANDS = {"bench": "kpctl.bench", "demo": "kpctl.demo", "lab": "kpctl.demo"}
"""Commands of a person at a desk. Images and packages for nodes leave their folders out."""


def _desk_command(name: str, folder: str) -> click.Command:
    """The command, or one that explains that this installation does not have it."""
    if find_spec(folder) is not None:
        found: click.Command = getattr(import_module(f"{folder}.cli"), name)
        return found

    @click.command(name, hidden=True, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1)
    def absent(arguments: tuple[str, ...]) -> None:
        raise click.ClickException(
            f"this installation is for nodes and has no `{name}`; it is in the source: make setup"
        )

    return absent


for _name, _folder in _DESK_COMMANDS.items():
    main.add_command(_desk_command(_name, _folder))
for _command in (
    plan,
    apply,
    check,
    cleanup,
    doctor,
    drift,
    connections,
    top,
    dashboard,
    bundle,
    completion,
):
    main.add_command(_command)
for _command in (status, get, explain, trace, render):
    main.add_command(_command)
