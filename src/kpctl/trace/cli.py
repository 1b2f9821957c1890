"""The command `kpctl trace`: options in, exit code out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from kpctl.look.output import print_text
from kpctl.snapshot.options import Place, about_a_proxy, output_option
from kubeproxy.errors import ProxyError

if TYPE_CHECKING:
    from kpctl.snapshot.types import Snapshot
    from kpctl.trace.compare import Comparison
    from kpctl.trace.packets import Ruling
    from kpctl.trace.question import Question

DIFFERS, REFUSED, LEFT_ALONE, FAILED = 1, 3, 4, 5

EPILOG = """\b
Examples:
  kpctl trace 10.244.1.7 10.96.0.10:80          from a pod to a Service
  kpctl trace outside 192.0.2.10:30080/UDP      from outside to a node port
  kpctl trace node [fd00:10:96::a]:53/UDP       from the node itself
  kpctl trace outside 10.96.0.10:80 -f web.yaml --mode ipvs
  kpctl trace node 10.96.0.10:80 --live --send  one real connection, followed

\b
Exit codes:
  0  forwarded to an endpoint; plan, rendered rules and kernel agree
  1  they differ: the first place is shown
  2  the command line is wrong
  3  rejected or dropped, and they agree on it
  4  no Service takes it, and they agree on it
  5  failed: the proxy or the kernel cannot be asked
"""


class _Failed(click.ClickException):
    exit_code = FAILED


@click.command(epilog=EPILOG)
@click.argument("source")
@click.argument("destination", metavar="DESTINATION:PORT[/PROTO]")
@click.option("--interface", default="", help="the interface where the packet arrives")
@click.option("--live", is_flag=True, help="mark one real connection and follow it")
@click.option("--send", is_flag=True, help="with --live: make the connection, from this host")
@click.option(
    "--timeout", default=30.0, show_default=True, help="with --live: seconds to wait for it"
)
@about_a_proxy
@output_option
@click.pass_context
def trace(
    ctx: click.Context,
    source: str,
    destination: str,
    interface: str,
    *,
    live: bool,
    send: bool,
    timeout: float,
    output: str,
    place: Place,
) -> None:
    """Follow a packet through the plan, the rendered rules and the kernel.

    SOURCE is the address of a pod or of any other client, `node` for the node itself, or `outside`
    for a client outside the cluster. Shown are the Services, chains, sets and endpoints that a
    new connection meets, and the first place where plan, rules and kernel differ.

    With --live one real connection is marked and followed through the kernel's rules as they
    execute. This adds a table of its own for a moment, and changes nothing of the proxy's.
    """
    from kpctl.trace.question import Question
    from kpctl.trace.subject import parse_destination
    from kubeproxy.errors import ConfigError

    if send and not live:
        raise click.UsageError("--send goes with --live")
    if live and not place.is_live:
        raise click.UsageError("--live follows a real connection: not with --bundle or -f")
    try:
        question = Question(source, parse_destination(destination), interface)
        snapshot = place.read()
        if live:
            ctx.exit(_follow(snapshot, question, send=send, timeout=timeout, output=output))
        ctx.exit(_answer(snapshot, question, output, is_live=place.is_live))
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    except ProxyError as error:
        raise _Failed(str(error)) from error


def _answer(snapshot: Snapshot, question: Question, output: str, *, is_live: bool) -> int:
    import asyncio

    from kpctl.look.output import print_data
    from kpctl.trace.question import answer
    from kpctl.trace.text import answer_data, answer_lines

    found = asyncio.run(answer(snapshot, question, is_live=is_live))
    backend = snapshot.backends[question.family]
    node = snapshot.pipelines[question.family].node
    about = (found.comparison, found.wanted, backend, node)
    if output in ("json", "yaml"):
        print_data(answer_data(*about, mode=snapshot.mode), output)
    else:
        _print(answer_lines(*about, mode=snapshot.mode, is_wide=output == "wide"))
    return exit_code(found.comparison)


def _print(lines: Iterable[str]) -> None:
    """Print lines; in a terminal those that are too long go on indented."""
    from kpctl.look.output import columns

    width = columns()
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        is_long = len(indent) < width < len(line)
        print_text(textwrap.fill(line, width, subsequent_indent=indent) if is_long else line)


def exit_code(comparison: Comparison) -> int:
    """The code for scripts, as the epilog has it."""
    if comparison.difference is not None or comparison.verdict is None:
        return DIFFERS
    return _code(comparison.verdict)


def _code(ruling: Ruling) -> int:
    return {"forward": 0, "untouched": LEFT_ALONE}.get(ruling.value, REFUSED)


def _follow(
    snapshot: Snapshot, question: Question, *, send: bool, timeout: float, output: str
) -> int:
    import asyncio

    from kpctl.look.output import print_data
    from kpctl.trace.live import follow_live
    from kpctl.trace.livetext import followed_data, followed_lines

    followed = asyncio.run(follow_live(snapshot, question, is_sent=send, timeout_seconds=timeout))
    if output in ("json", "yaml"):
        print_data(followed_data(followed, mode=snapshot.mode), output)
    else:
        _print(followed_lines(followed, mode=snapshot.mode, is_wide=output == "wide"))
    return _code(followed.ruling) if followed.is_as_planned else DIFFERS
