"""Every exception this program raises on purpose.

    ProxyError
    ├── ConfigError          flags or configuration file are wrong
    ├── Unsupported          the chosen mode cannot run on this host, and why
    ├── ObjectError          one API object cannot be used; the others go on
    ├── ApiError             talking to the API server
    │   ├── Expired          the resource version is gone: list again
    │   ├── Forbidden        a permission is missing; names verb and resource
    │   └── Unavailable      no answer, or an answer that means "later"
    ├── KernelError          talking to the kernel or to one of its tools
    │   ├── Busy             somebody holds a lock; try again soon
    │   ├── Rejected         the kernel refuses what we sent: split until the culprit stands alone
    │   ├── Drifted          the kernel does not hold what we believed: re-read
    │   └── ToolMissing      a program we need is not installed
    ├── ListenError          a port cannot be bound (`status.listen`)
    ├── ServeError           a server that must run cannot (`status.http`)
    └── RestartNeeded        the process must end, to be started afresh (`serving`)

Raised at the edges, handled in `engine` and `app`. Pure code raises only for broken invariants.
"""

from __future__ import annotations


class ProxyError(Exception):
    """Base of all errors of this program; its text is written for the operator."""


class ConfigError(ProxyError):
    """Flags or configuration file are wrong."""


class Unsupported(ProxyError):
    """The chosen mode cannot run on this host."""


class ObjectError(ProxyError):
    """One API object cannot be used."""


class ApiError(ProxyError):
    """The API server could not be reached, or refused."""


class Expired(ApiError):
    """The resource version we continued from is no longer kept."""


class Forbidden(ApiError):
    """The credentials lack a permission."""


class Unavailable(ApiError):
    """The API server gave no usable answer; later it may."""


class KernelError(ProxyError):
    """The kernel, or a tool that speaks to it, refused or failed."""

    def __init__(self, message: str, *, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class Busy(KernelError):
    """Somebody else holds a lock we need."""


class Rejected(KernelError):
    """What we sent is not acceptable; sending the same again will not help."""


class Drifted(KernelError):
    """The kernel does not hold what the ledger believed."""


class ToolMissing(KernelError):
    """A program we need is not installed; the text says which package has it."""
