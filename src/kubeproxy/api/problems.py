"""Error responses of the API server as exceptions, with a text that helps the operator.

The text keeps the message of the server's Status, which names verb and resource, and adds what to
do about it.
"""

from __future__ import annotations

from kubeproxy.api.watch import GONE, Status
from kubeproxy.errors import ApiError, Expired, Forbidden, Unavailable

BAD_REQUEST = 400
NOT_FOUND = 404
TOO_MANY_REQUESTS = 429
MOST_MESSAGE = 500
"""How many characters of the server's message are used."""


class Refused(ApiError):
    """The server refuses the request, and would refuse it again."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Unauthorized(Unavailable):
    """The server does not accept our credentials. A rotated token may change that."""


class ServerFailed(Unavailable):
    """The server failed (5xx). Another kind of request may succeed: pages instead of a stream."""


def api_error(what: str, code: int, status: Status) -> ApiError:
    """Return the exception for a response with this code and Status to the request `what`."""
    message = status.message[:MOST_MESSAGE] or f"HTTP status {code}"
    if code == 401:
        return Unauthorized(
            f"{what}: the server does not accept our credentials ({message}); "
            "check the token or client certificate of the kubeconfig or service account"
        )
    if code == 403:
        return Forbidden(
            f"{what}: {message}; bind a ClusterRole with this verb and resource to this user"
        )
    if code == GONE or status.is_expired or "Too large resource version" in message:
        # Too large: the server's storage was set back, and our version never existed there.
        return Expired(f"{what}: {message}")
    if code == TOO_MANY_REQUESTS:
        return Unavailable(f"{what}: the server asks for patience ({code}: {message})")
    if code >= 500:
        return ServerFailed(f"{what}: the server cannot answer now ({code}: {message})")
    return Refused(f"{what}: the server refuses ({code}: {message})", code)
