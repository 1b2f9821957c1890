"""The command `kube-proxy`: arguments in, exit code out.

Signals are handled before anything is imported that takes time. The daemon is imported when it
runs, so that `--version`, `--help` and wrong arguments are answered at once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kubeproxy.run.process import Signals, leave, open_standard_streams, print_text

if TYPE_CHECKING:
    from kubeproxy.config.command import Settings


def main(argv: list[str] | None = None) -> int:
    """Run one invocation. Return the exit code, unless the process ends before."""
    words = sys.argv[1:] if argv is None else argv
    signals = Signals(words)
    signals.install()
    open_standard_streams()
    from kubeproxy.config.command import Exit, parse_command_line, start_logging

    parsed = parse_command_line(words)
    if not isinstance(parsed, Exit):
        start_logging(parsed)
        leave(_run(parsed, signals))
    print_text(parsed.stdout, 1)
    print_text(parsed.stderr, 2)
    return parsed.code


def _run(settings: Settings, signals: Signals) -> int:
    import asyncio

    from kubeproxy.errors import ProxyError
    from kubeproxy.kernel.descriptors import raise_descriptor_limit
    from kubeproxy.logs import get_logger, stop_logging
    from kubeproxy.run import app
    from kubeproxy.run.workers import wait_without_threads

    logger = get_logger(__name__)
    raise_descriptor_limit()
    # Not asyncio.run, which waits for threads that look names up or take profiles.
    loop = asyncio.new_event_loop()
    wait_without_threads(loop)
    loop.set_exception_handler(app.report_exception)
    interruption = app.interruption_of(settings)
    signals.use(loop, code=interruption.code, last_words=interruption.log)
    try:
        loop.run_until_complete(app.run(settings, signals))
    except ProxyError as error:
        logger.error(error, "Error running ProxyServer")
        logger.error(error, "command failed")
        return 1
    finally:
        stop_logging()
    return 0


if __name__ == "__main__":
    sys.exit(main())
