"""The command `kpctl dashboard`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kpctl.look.output import print_text
from kpctl.snapshot.options import about_a_proxy

if TYPE_CHECKING:
    from kpctl.dashboard.feed import Feed
    from kpctl.look.output import print_text
from kpctl.snapshot.options import Place

EPILOG = """\b
Examples:
  kpctl dashboard                          the proxy that runs here
  kpctl dashboard --port 8001              always at the same port
  kpctl dashboard --bundle node-7.bundle   what kpctl bundle wrote on another machine
  kpctl dashboard -f manifests/            what a proxy would do with these files

\b
From another machine, through SSH:
  ssh -L 8001:127.0.0.1:8001 NODE sudo kpctl dashboard --port 8001

\b
Exit codes:
  0  ended by Ctrl-C or SIGTERM
  1  failed: no proxy answers, the file is no bundle, the port is taken
  2  the command line is wrong
"""


@click.command(epilog=EPILOG)
@about_a_proxy
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="the port (default: any free one)"
)
def dashboard(place: Place, port: int) -> None:
    """Show a proxy in the browser: Services, endpoints, reasons, rounds, repairs.

    Serves a page on 127.0.0.1 that follows the proxy without reloading, and prints its address.
    The address holds a secret: other users of this machine cannot read the page without it. The
    page only shows; it changes nothing.
    """
    import asyncio

    asyncio.run(_serve(place, port))


async def _serve(place: Place, port: int) -> None:
    import asyncio
    import secrets
    import signal

    from kpctl.dashboard.server import ADDRESS, dashboard_handler, open_socket, serve

    end = asyncio.Event()
    sock = open_socket(port)
    with sock:
        feed = _feed(place)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end.set)
        token, bound = secrets.token_urlsafe(24), sock.getsockname()[1]
        print_text(feed.board.snapshot.origin)
        click.echo(f"Open http://{ADDRESS}:{bound}/{token}/  (Ctrl-C ends)")
        await serve(sock, dashboard_handler(feed, token, bound), end)


def _feed(place: Place) -> Feed:
    from kpctl.dashboard.feed import LiveFeed, StillFeed
    from kpctl.look.sentences import use_sentences

    use_sentences()
    return LiveFeed(place.socket) if place.is_live else StillFeed(place.read())
