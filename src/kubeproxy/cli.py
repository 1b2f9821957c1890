"""The command `kube-proxy`: arguments in, exit code out.

Only the command line is imported here. The daemon is imported when it runs, so that `--version`,
`--help` and wrong arguments are answered at once.
"""

from __future__ import annotations

import sys

from kubeproxy.config.command import Exit, Settings, parse_command_line, start_logging
from kubeproxy.errors import ProxyError


def main(argv: list[str] | None = None) -> int:
    """Run one invocation and return the exit code."""
    parsed = parse_command_line(sys.argv[1:] if argv is None else argv)
    if isinstance(parsed, Exit):
        sys.stdout.write(parsed.stdout)
        sys.stderr.write(parsed.stderr)
        return parsed.code
    start_logging(parsed)
    return _run(parsed)


def _run(settings: Settings) -> int:
    import asyncio

    from kubeproxy.logs import get_logger, stop_logging
    from kubeproxy.run import app

    logger = get_logger(__name__)
    try:
        asyncio.run(app.run(settings))
    except ProxyError as error:
        logger.error(error, "Error running ProxyServer")
        logger.error(error, "command failed")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        stop_logging()
    return 0


if __name__ == "__main__":
    sys.exit(main())
