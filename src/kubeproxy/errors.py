"""Every exception this program raises on purpose.

    ProxyError
    ├── ConfigError          flags or configuration file are wrong
    ├── Unsupported          the chosen mode cannot run on this host, and why
    ├── ObjectError          one API object cannot be used; the others go on
    ├── ApiError             talking to the API server
    │   ├── Expired          the resource version is gone: list again
    │   ├── Forbidden        a permission is missing; names verb and resource
    │   └── Unavailable      no response, or one that means "later": retry
    ├── KernelError          talking to the kernel or to one of its tools
    │   ├── Busy             another process holds a lock or changes the same table: retry
    │   ├── Rejected         part of what we sent is refused: split until the culprit is alone
    │   ├── Drifted          the kernel is not as the ledger believes, or unknown: re-read
    │   └── ToolMissing      a program we need is not installed
    ├── ListenError          a port cannot be bound (`status.listen`)
    ├── ServeError           a server that must run cannot (`status.http`)
    └── RestartNeeded        the process must end, to be started again (`run.serving`)

The edges raise them: `api`, `kernel`, the sinks of the modes, the servers in `status`. Those with a
remedy are handled where the loop is that can apply it: KernelError in `sync.engine`, ApiError in
`api.reflector`, ObjectError in `sync.intake`. All others end the process: `run.serving` stops what
runs, and `cli` logs the text and exits with code 1. Pure code raises only for broken invariants;
where one object can break one, the fault ends at that object and is named by `fault_text`.
"""

from __future__ import annotations

from traceback import extract_tb


class ProxyError(Exception):
    """Base of all errors of this program. The text is written for the operator."""


class ConfigError(ProxyError):
    """Flags or configuration file are wrong."""


class Unsupported(ProxyError):
    """The chosen mode cannot run on this host."""


class ObjectError(ProxyError):
    """One API object cannot be used."""


class ApiError(ProxyError):
    """The API server could not be reached, or refused the request."""


class Expired(ApiError):
    """The server no longer keeps the resource version from which we continue."""


class Forbidden(ApiError):
    """The credentials lack a permission."""


class Unavailable(ApiError):
    """The API server gave no usable response. A retry may succeed."""


class KernelError(ProxyError):
    """The kernel, or one of its tools, refused a request or failed."""

    def __init__(self, message: str, *, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class Busy(KernelError):
    """Another process holds a lock we need, or changes the table we read. A retry may succeed."""


class Rejected(KernelError):
    """Part of what we sent is refused, and would be refused again.

    How much of it took effect depends on the sink: see `modes.base.Sink`.
    """


class Drifted(KernelError):
    """The kernel does not hold what the ledger believes, or what it holds is unknown."""


class ToolMissing(KernelError):
    """A program we need is not installed. The text names the package that has it."""


def fault_text(fault: Exception) -> str:
    """Name an exception that was not raised on purpose, and the line it comes from."""
    frames = extract_tb(fault.__traceback__)
    place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"internal error, please report it: {type(fault).__name__} at {place}: {fault!s:.200}"
