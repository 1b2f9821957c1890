"""The options of every command that looks at a proxy, and the snapshot that they ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from kpctl.look.output import FORMATS
from kubeproxy.modes.registry import mode_names

if TYPE_CHECKING:
    from kpctl.snapshot.types import Snapshot
    from kubeproxy.facts.ids import ServiceName

F = TypeVar("F", bound=Callable[..., object])
_FILE = click.Path(exists=True, allow_dash=True)


def about_a_proxy(command: F) -> F:
    """Add the options that say which proxy to look at. They arrive as `place`."""
    return _gathered(
        command,
        click.option("--socket", type=click.Path(path_type=Path), help="the socket of a proxy"),
        click.option("--bundle", type=click.Path(exists=True), help="a file of kpctl bundle"),
        click.option("-f", "--file", "files", multiple=True, type=_FILE, help="manifests instead"),
        click.option("--mode", type=click.Choice(mode_names()), help="with -f: the mode"),
        click.option("--config", type=click.Path(exists=True), help="with -f: a configuration"),
        click.option("--node", default="", help="with -f: the node to look from"),
    )


output_option = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", help="the form of the output"
)


class Place:
    """Which proxy to look at: the arguments that `about_a_proxy` adds."""

    def __init__(
        self,
        *,
        socket: Path | None = None,
        bundle: str | None = None,
        files: tuple[str, ...] = (),
        mode: str | None = None,
        config: str | None = None,
        node: str = "",
    ) -> None:
        if bool(bundle) + bool(files) + bool(socket) > 1:
            raise click.UsageError("of --socket, --bundle and -f only one can be given")
        if not files and (mode or config or node):
            raise click.UsageError("--mode, --config and --node go with -f")
        self.socket = socket
        self.bundle = bundle
        self.files = files
        self.mode = mode
        self.config = config
        self.node = node

    @property
    def is_live(self) -> bool:
        """Is a running proxy asked, so that the kernel here is the one it programs?"""
        return not self.bundle and not self.files

    def read(self, only: ServiceName | None = None) -> Snapshot:
        """Return the snapshot; of a running proxy with `only` just that Service.

        Raises ProxyError.
        """
        if self.bundle:
            from kpctl.snapshot.bundle import read_bundle

            return read_bundle(Path(self.bundle))
        if self.files:
            from kpctl.look.cli import offline_request
            from kpctl.snapshot.files import read_files

            request = offline_request(self.files, self.config, node=self.node, mode=self.mode or "")
            return read_files(request)
        from kpctl.snapshot.live import read_live

        return read_live(self.socket, only)


_NAMES = ("socket", "bundle", "files", "mode", "config", "node")


def _gathered(command: F, *options: Callable[[F], F]) -> F:
    """Add the options, and pass their values on as one `Place`."""
    from functools import wraps

    @wraps(command)
    def gather(*arguments: object, **values: object) -> object:
        own = {name: values.pop(name) for name in _NAMES}
        return command(*arguments, place=Place(**own), **values)  # type: ignore[arg-type]

    found: F = gather  # type: ignore[assignment]
    for option in reversed(options):
        found = option(found)
    return found
