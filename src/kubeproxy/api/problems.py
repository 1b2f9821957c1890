"""Answers that are no success, as exceptions whose text helps the operator.

The API server says in its Status what is wrong; we keep its words, which name verb and resource,
and add what to do about it.
"""

from __future__ import annotations

from kubeproxy.api.watch import GONE, Status
from kubeproxy.errors import ApiError, Expired, Forbidden, Unavailable

TOO_MANY_REQUESTS = 429


class Refused(ApiError):
    """The server will not do this, now or later."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Unauthorized(Unavailable):
    """The server does not know us; a rotated token may change that."""


class ServerFailed(Unavailable):
    """The server answered that it failed (5xx): another way of asking may fare better."""


def problem(what: str, code: int, status: Status) -> ApiError:
    """The exception for an answer with this HTTP code and Status to the request `what`."""
    said = status.message or f"HTTP status {code}"
    if code == 401:
        return Unauthorized(
            f"{what}: the server does not accept our credentials ({said}); "
            "check the token or client certificate of the kubeconfig or service account"
        )
    if code == 403:
        return Forbidden(
            f"{what}: {said}; bind a ClusterRole with this verb and resource to this user"
        )
    if code == GONE or status.is_expired or "Too large resource version" in said:
        # Too large: the server's storage was set back, and our version never existed there.
        return Expired(f"{what}: {said}")
    if code == TOO_MANY_REQUESTS:
        return Unavailable(f"{what}: the server asks for patience ({code}: {said})")
    if code >= 500:
        return ServerFailed(f"{what}: the server cannot answer now ({code}: {said})")
    return Refused(f"{what}: the server refuses ({code}: {said})", code)
