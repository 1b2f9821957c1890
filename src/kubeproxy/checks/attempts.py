"""One try of a check: what it sends over a socket that never blocks, and what events mean.

Every try has a connection of its own, so that an endpoint can disturb no check but its own. Where
the socket comes from, and how the connection ends, is left to `sockets`. Raises OSError with what
went wrong; whose fault that is, is decided there as well.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Protocol

from kubeproxy.checks.answers import MOST_BYTES, HttpAnswer, http_request, judge_datagram
from kubeproxy.checks.condition import Failure
from kubeproxy.checks.schedule import Target
from kubeproxy.facts.policy import CheckKind, HealthCheck

if TYPE_CHECKING:
    import ssl

_BROKEN = select.EPOLLERR | select.EPOLLHUP


class Attempt(Protocol):
    """A check under way. `failure` counts once `ready` has returned True."""

    target: Target
    sock: socket.socket
    failure: Failure | None

    def ready(self, events: int) -> bool:
        """Go on after events of the socket. Return whether the check is over. Raises OSError."""


class TcpAttempt:
    """A connection, and nothing else."""

    def __init__(self, target: Target, sock: socket.socket) -> None:
        self.target = target
        self.sock = sock
        self.failure: Failure | None = None

    def ready(self, events: int) -> bool:
        if events & _BROKEN:
            raise_pending(self.sock)
        return True


class HttpAttempt(TcpAttempt):
    """A request, and the status of its answer."""

    def __init__(self, target: Target, sock: socket.socket) -> None:
        super().__init__(target, sock)
        self._request = http_request(target.check, target.address, target.port)
        self._answer = HttpAnswer(target.check)

    def ready(self, events: int) -> bool:
        if self._request:
            # A request is smaller than any buffer of a new connection.
            self.sock.send(self._request)
            self._request = b""
            # What arrives from now on is another event.
            return bool(events & select.EPOLLIN) and self._read()
        return self._read()

    def _read(self) -> bool:
        try:
            while not self._answer.feed(self.sock.recv(MOST_BYTES)):
                pass
        except BlockingIOError:
            return False
        self.failure = self._answer.failure
        return True


class HttpsAttempt(HttpAttempt):
    """The same over TLS. Certificates are not verified, as kubelet's probes do not."""

    def __init__(self, target: Target, sock: socket.socket) -> None:
        super().__init__(target, sock)
        self._tls: ssl.SSLSocket | None = None
        self._is_agreed = False

    def ready(self, events: int) -> bool:
        import ssl

        if self._tls is None:
            raise_pending(self.sock)
            self.sock = self._tls = _wrap(self.sock, tls_name(self.target.check))
        try:
            if not self._is_agreed:
                self._tls.do_handshake()
                self._is_agreed = True
            # Records that TLS holds already cause no event.
            return super().ready(events | select.EPOLLIN)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLError as error:
            reason = (error.reason or "failed").replace("_", " ").lower()
            self.failure = Failure("tls", f"TLS: {reason}")
            return True


class UdpAttempt:
    """A datagram, and its answer.

    The socket is connected: only the endpoint's own datagrams arrive, and its refusal does, too.
    """

    def __init__(self, target: Target, sock: socket.socket) -> None:
        self.target = target
        self.sock = sock
        self.failure: Failure | None = None
        self._is_sent = False

    def ready(self, events: int) -> bool:
        if not self._is_sent:
            self._is_sent = True
            self.sock.send(self.target.check.send)
            return False
        if not events & (select.EPOLLIN | _BROKEN):
            return False  # the datagram has left, and there is room for another
        try:
            data = self.sock.recv(MOST_BYTES)
        except BlockingIOError:
            return False
        self.failure = judge_datagram(self.target.check, data)
        return True


ATTEMPTS: Mapping[CheckKind, Callable[[Target, socket.socket], Attempt]] = {
    CheckKind.TCP: TcpAttempt,
    CheckKind.HTTP: HttpAttempt,
    CheckKind.HTTPS: HttpsAttempt,
    CheckKind.UDP: UdpAttempt,
}


def raise_pending(sock: socket.socket) -> None:
    """Raise what has gone wrong with a socket since the last call, if anything."""
    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, "")


def tls_name(check: HealthCheck) -> str | None:
    """The server name for TLS: that of the `Host` header without a port, if it is valid."""
    name, separator, port = check.host.rpartition(":")
    host = name if separator and port.isdecimal() and ":" not in name else check.host
    try:
        host.encode("idna")
    except UnicodeError:  # an empty label, or one that is too long
        return None
    return host or None


def _wrap(sock: socket.socket, name: str | None) -> ssl.SSLSocket:
    return _tls_context().wrap_socket(sock, do_handshake_on_connect=False, server_hostname=name)


@cache
def _tls_context() -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # Whether a program answers is checked, not how strong its keys are. But an endpoint must not
    # choose an exchange of keys over a large finite field: one of 8,192 bits keeps the event loop
    # for 160 ms. Go's clients have none either, and every program of TLS 1.3 implements this
    # curve (RFC 8446, 9.1). Python can name one curve only, so an endpoint that is configured to
    # allow no other than X25519, say, fails; the guide tells so.
    context.set_ciphers("DEFAULT:!kDHE:@SECLEVEL=0")
    context.set_ecdh_curve("prime256v1")
    return context
