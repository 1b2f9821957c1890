"""The command `kpctl bundle`: options in, a file out."""

from __future__ import annotations

from pathlib import Path

import click

from kpctl.look.exits import epilog
from kpctl.look.output import print_text

_EXAMPLES = """\
  kpctl bundle support.gz         writes everything that a helper needs
  kpctl bundle support.gz -i 10   with ten seconds of `kpctl top`
  kpctl explain shop/web --bundle support.gz
"""


@click.command(epilog=epilog("written", examples=_EXAMPLES, has_files=False))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--socket", type=click.Path(path_type=Path), help="the socket of a proxy")
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="seconds for which connections are counted, for `kpctl top`",
)
def bundle(file: Path, socket: Path | None, interval: float) -> None:
    """Write what a running proxy shows to FILE, for commands with --bundle, here or elsewhere.

    It holds Services, endpoints, the configuration, the last rounds and repairs, what the kernel
    has of ours and who else is on our hooks, connections by endpoint, one interval of `kpctl top`,
    and what `kpctl doctor` finds. It holds no tokens, keys or other contents of files. Only its
    owner may read it.
    """
    from kpctl.bundle.collect import collect
    from kpctl.look.sentences import use_sentences
    from kpctl.snapshot.bundle import write_bundle
    from kpctl.snapshot.client import find_socket

    use_sentences()
    collected = collect(find_socket(socket), interval)
    for note in collected.notes:
        print_text(f"Note: {note}", err=True)
    count = write_bundle(collected.snapshot, file, collected.head)
    print_text(f"{file}: {count} Services, {file.stat().st_size / 1024:.0f} KiB")
