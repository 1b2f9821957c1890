"""What is sent to an endpoint, and what its answer means. Bytes and values, pure.

An answer comes from anyone who runs an endpoint: it may be of any length, come byte by byte, or
never end. No more of it is looked at than decides, and no more is kept than `MOST_BYTES`.
"""

from __future__ import annotations

from kubeproxy.checks.condition import Failure
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.policy import HealthCheck
from kubeproxy.version import PACKAGE_VERSION

MOST_BYTES = 4096
"""How much of an answer may come before the status that counts."""

NOT_HTTP = Failure("answer", "the answer is not HTTP")
NO_STATUS = Failure("answer", "the connection ended before a status")
UNEXPECTED = Failure("answer", "the answer is not the expected one")

_START = b"HTTP/1."
_STATUS = len("HTTP/1.1 ")
_END_OF_HEAD = b"\r\n\r\n"


def http_request(check: HealthCheck, address: str, port: int) -> bytes:
    """The request of an HTTP check. One connection is for one request, as kubelet's probes are."""
    host = check.host or join_host_port(address, port)
    return (
        f"GET {check.path} HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        f"User-Agent: kube-proxy/{PACKAGE_VERSION} (health check)\r\n"
        "Accept: */*\r\n"
        "Connection: close\r\n\r\n"
    ).encode("ascii")


class HttpAnswer:
    """What has come so far of the answer to an HTTP request."""

    def __init__(self, check: HealthCheck) -> None:
        self._statuses = check.statuses
        self._data = b""
        self.failure: Failure | None = None
        """Once it is complete: what is wrong with it."""

    def feed(self, data: bytes) -> bool:
        """Take what came; nothing if the connection has ended. Return whether it is complete."""
        self._data += data
        status = self._status()
        if status is None:
            self.failure = self._hopeless(is_end=not data)
            return self.failure is not None
        self.failure = _judge_status(status, self._statuses)
        return True

    def _status(self) -> bytes | None:
        """Return the status, behind interim ones (103 Early Hints); None if it is yet to come."""
        start = 0
        while self._data.startswith(_START, start):
            status = self._data[start + _STATUS : start + _STATUS + 3]
            if len(status) < 3:
                return None
            if not status.startswith(b"1") or status == b"101":
                return status
            end = self._data.find(_END_OF_HEAD, start)
            if end < 0:
                return None
            start = end + len(_END_OF_HEAD)
        return None

    def _hopeless(self, *, is_end: bool) -> Failure | None:
        """Return why no status can come any more, or None if one can."""
        if not self._data.startswith(_START[: len(self._data)]) or len(self._data) > MOST_BYTES:
            return NOT_HTTP
        return NO_STATUS if is_end else None


def _judge_status(text: bytes, statuses: tuple[tuple[int, int], ...]) -> Failure | None:
    if not text.isdigit():
        return NOT_HTTP
    status = int(text)
    for low, high in statuses:
        if low <= status <= high:
            return None
    return Failure("status", f"status {status}")


def judge_datagram(check: HealthCheck, data: bytes) -> Failure | None:
    """What is wrong with the answer to a UDP check."""
    return None if data.startswith(check.expect) else UNEXPECTED
