"""A small netlink socket: requests, dumps, batches, and multicast notifications.

Why: the kernel replies to netlink requests inside `sendmsg`, so a plain, synchronous socket is both
the fastest and the simplest tool. Only multicast notifications have to be waited for. Promise:
every refusal becomes a `KernelError` with the kernel's own text, a dump that the kernel marks as
inconsistent is read again, and every wait for a reply has a limit. Leaves to others: what the
messages mean.

A socket belongs to the network namespace that was current when it was opened.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno as errnos
import os
import select
import socket
import struct
import sys
from collections.abc import Collection, Iterator, Sequence

from kubeproxy.errors import Busy, Drifted, KernelError, Rejected
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import Failure, Message

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12
NETLINK_GENERIC = 16

_SOL_NETLINK = 270
_ADD_MEMBERSHIP = 1
_CAP_ACK = 10
_EXT_ACK = 11
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_SO_ATTACH_FILTER = 26

_RECEIVE_BYTES = 1 << 18
_REPLY_BYTES = 1 << 13
"""No single reply is longer than a page."""
_DUMP_ATTEMPTS = 5
_ENDS = (codec.NLMSG_DONE, codec.NLMSG_ERROR)
_BUSY = frozenset(
    {
        *(errnos.EAGAIN, errnos.EINTR, errnos.ETIMEDOUT, errnos.ENOBUFS, errnos.ERESTART),
        *(errnos.EMFILE, errnos.ENFILE),
    }
)
"""ERESTART: the rule set changed while the kernel prepared a transaction."""
_DRIFTED = frozenset({errnos.ENOENT, errnos.EEXIST, errnos.EBUSY, errnos.ESRCH})


def kernel_error(errno: int, what: str, detail: str = "") -> KernelError:
    """The exception for a kernel error number, naming what was requested."""
    words = detail or os.strerror(errno)
    if errno in (errnos.EPERM, errnos.EACCES):
        words += " (CAP_NET_ADMIN is needed in this network namespace)"
    text = f"{what}: {words}"
    if errno in _BUSY:
        return Busy(text, errno=errno)
    if errno in _DRIFTED:
        return Drifted(text, errno=errno)
    return Rejected(text, errno=errno)


class NetlinkSocket:
    """One netlink socket for requests, dumps and batches. Must not be shared between tasks."""

    def __init__(
        self, protocol: int, *, timeout_seconds: float = 10.0, send_buffer: int = 1 << 20
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._seq = 0
        self._send_buffer = 0
        self._socket = _open(protocol)
        self._view = memoryview(bytearray(_RECEIVE_BYTES))
        self._ensure_send_buffer(send_buffer)

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor. Harmless when repeated."""
        self._socket.close()

    @property
    def port_id(self) -> int:
        """The socket's address, by which the kernel names the author of a change."""
        return int(self._socket.getsockname()[0])

    def reserve(self, count: int) -> int:
        """Reserve `count` consecutive sequence numbers. Return the first.

        For callers that frame their messages themselves.
        """
        first = self._seq + 1
        self._seq += count
        if self._seq >= 1 << 32:
            first, self._seq = 1, count
        return first

    def request(self, kind: int, body: bytes, flags: int = 0, *, what: str = "") -> list[Message]:
        """Send one message and wait for its acknowledgement. Return the replies before it."""
        seq = self.reserve(1)
        flags |= codec.NLM_F_REQUEST | codec.NLM_F_ACK
        self._send(codec.message(kind, flags, seq, body))
        replies: list[Message] = []
        for reply in self._replies(seq, what):
            if reply.type == codec.NLMSG_ERROR:
                self._raise_failure(codec.parse_failure(reply), what)
                return replies
            replies.append(reply)
        return replies

    def dump(self, kind: int, body: bytes, flags: int = 0, *, what: str = "") -> list[Message]:
        """Return all replies of a dump, read again if the table changed meanwhile."""
        for _ in range(_DUMP_ATTEMPTS):
            replies = list(self._dump_once(kind, body, flags, what))
            if not any(reply.flags & codec.NLM_F_DUMP_INTR for reply in replies):
                return replies[:-1]
        raise Busy(
            f"{what}: the kernel's table kept changing while it was read", errno=errnos.EINTR
        )

    def stream(self, kind: int, body: bytes, *, what: str = "") -> Iterator[Message]:
        """The replies of a dump one by one, whatever changes meanwhile. Read it to its end."""
        for reply in self._dump_once(kind, body, 0, what):
            if reply.type not in _ENDS:
                yield reply

    def _dump_once(self, kind: int, body: bytes, flags: int, what: str) -> Iterator[Message]:
        """All replies, the one that ends the dump included."""
        seq = self.reserve(1)
        self._send(codec.message(kind, flags | codec.NLM_F_REQUEST | codec.NLM_F_DUMP, seq, body))
        for reply in self._replies(seq, what):
            if reply.type == codec.NLMSG_ERROR:
                self._raise_failure(codec.parse_failure(reply), what)
            if reply.type == codec.NLMSG_DONE:
                self._raise_failure(_done_failure(reply), what)
            yield reply
            if reply.type in _ENDS:
                return

    def receive(self, timeout_seconds: float) -> list[Message]:
        """Messages that come without being asked for: those of the next datagram, or none."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        if not poller.poll(timeout_seconds * 1000):
            return []
        return list(codec.iter_messages(self._receive_now() or b""))

    def transact(self, datagram: bytes | bytearray) -> list[Failure]:
        """Send one prepared datagram in one call. Return the failures the kernel replied with.

        For protocols whose kernel side works inside `sendmsg` and replies only to failures.
        """
        self._ensure_send_buffer(len(datagram) + (1 << 16))
        self._send(datagram)
        failures: list[Failure] = []
        while (data := self._receive_now()) is not None:
            failures += [
                failure
                for reply in codec.iter_messages(data)
                if reply.type == codec.NLMSG_ERROR and (failure := codec.parse_failure(reply)).errno
            ]
        return failures

    def ask(self, kind: int, bodies: Sequence[bytes]) -> tuple[int, list[bytes]]:
        """Send a request for each body, in one call. Return the first's number, and all replies.

        Each reply is one message with its envelope. For protocols whose kernel side works inside
        `sendmsg`, and for many small replies; all of them must fit the receive buffer.
        """
        first = self.reserve(len(bodies))
        packed = [
            codec.message(kind, codec.NLM_F_REQUEST, first + place, body)
            for place, body in enumerate(bodies)
        ]
        self._send(b"".join(packed))
        replies: list[bytes] = []
        try:
            while True:
                replies.append(self._socket.recv(_REPLY_BYTES))
        except BlockingIOError:
            return first, replies
        except OSError as error:
            raise kernel_error(error.errno or errnos.EIO, "netlink receive") from error

    def reserve_replies(self, size: int) -> None:
        """Make room for replies of this many bytes."""
        _grow(self._socket, _SO_RCVBUFFORCE, socket.SO_RCVBUF, size)

    def _send(self, datagram: bytes | bytearray) -> None:
        try:
            self._socket.send(datagram)
        except OSError as error:
            raise kernel_error(error.errno or errnos.EIO, "netlink send") from error

    def _replies(self, seq: int, what: str) -> Iterator[Message]:
        """Replies to `seq`. Leftovers of an abandoned request are skipped."""
        while True:
            for reply in codec.iter_messages(self._receive(what)):
                if reply.seq == seq:
                    yield reply

    def _receive(self, what: str) -> bytes:
        data = self._receive_now()
        if data is not None:
            return data
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        if not poller.poll(self._timeout_seconds * 1000):
            raise kernel_error(errnos.ETIMEDOUT, what or "netlink request")
        return self._receive_now() or b""

    def _receive_now(self) -> bytes | None:
        try:
            length = self._socket.recv_into(self._view)
        except BlockingIOError:
            return None
        except OSError as error:
            raise kernel_error(error.errno or errnos.EIO, "netlink receive") from error
        return bytes(self._view[:length])

    def _ensure_send_buffer(self, size: int) -> None:
        if size > self._send_buffer:
            _grow(self._socket, _SO_SNDBUFFORCE, socket.SO_SNDBUF, size)
            self._send_buffer = size

    @staticmethod
    def _raise_failure(failure: Failure, what: str) -> None:
        if failure.errno:
            raise kernel_error(failure.errno, what or "netlink request", failure.text)


class Overrun(KernelError):
    """Notifications came faster than they were read, and the kernel dropped some."""


class NetlinkMonitor:
    """Multicast notifications of one protocol, without those that `skip_authors` caused."""

    def __init__(
        self,
        protocol: int,
        groups: Sequence[int],
        *,
        receive_buffer: int = 1 << 22,
        skip_authors: Collection[int] = (),
    ) -> None:
        self._socket = _open(protocol)
        self.skip_authors(skip_authors)
        _grow(self._socket, _SO_RCVBUFFORCE, socket.SO_RCVBUF, receive_buffer)
        for group in groups:
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)

    def __enter__(self) -> NetlinkMonitor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor. Harmless when repeated."""
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor, to wait for it together with others."""
        return self._socket.fileno()

    def skip_authors(self, authors: Collection[int]) -> None:
        """Make the kernel withhold from now on what sockets with these port ids cause."""
        if authors:
            _attach(self._socket, _dropping(authors))

    def grow(self, receive_buffer: int) -> None:
        """Make room for more notifications that are not read yet."""
        _grow(self._socket, _SO_RCVBUFFORCE, socket.SO_RCVBUF, receive_buffer)

    def receive_datagram(self) -> bytes:
        """A datagram that has arrived already, or nothing. Raise `Overrun`."""
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise _monitor_error(error) from error

    async def receive(self) -> list[Message]:
        """Wait for a datagram and return its messages. Raise `Overrun` if some were dropped."""
        loop = asyncio.get_running_loop()
        try:
            return list(codec.iter_messages(await loop.sock_recv(self._socket, _RECEIVE_BYTES)))
        except OSError as error:
            raise _monitor_error(error) from error

    def receive_now(self) -> list[Message]:
        """The messages of a datagram that has arrived already, or none. Raise `Overrun`."""
        return list(codec.iter_messages(self.receive_datagram()))


def _monitor_error(error: OSError) -> KernelError:
    if error.errno == errnos.ENOBUFS:
        return Overrun("netlink news was lost", errno=errnos.ENOBUFS)
    return kernel_error(error.errno or errnos.EIO, "netlink monitor")


def _open(protocol: int) -> socket.socket:
    try:
        handle = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol)
    except OSError as error:
        raise kernel_error(error.errno or errnos.EIO, f"netlink protocol {protocol}") from error
    handle.bind((0, 0))
    for option in (_CAP_ACK, _EXT_ACK):
        handle.setsockopt(_SOL_NETLINK, option, 1)
    return handle


def _grow(handle: socket.socket, force: int, plain: int, size: int) -> None:
    """Enlarge a buffer. Forcing it needs CAP_NET_ADMIN, otherwise a sysctl caps it."""
    try:
        handle.setsockopt(socket.SOL_SOCKET, force, size)
    except PermissionError:
        handle.setsockopt(socket.SOL_SOCKET, plain, size)


def _dropping(authors: Collection[int]) -> bytes:
    """A classic BPF program that drops datagrams whose first header names one of these authors.

    It loads in network order what the header holds in host order, hence the swap.
    """
    swapped = [struct.unpack(">I", struct.pack("=I", author))[0] for author in authors]
    instructions = [
        (0x20, 0, 0, 12),  # ld [12]
        # jeq author: over the others and the next one
        *((0x15, len(swapped) - place, 0, author) for place, author in enumerate(swapped)),
        (0x06, 0, 0, 0xFFFFFFFF),  # ret all
        (0x06, 0, 0, 0),  # ret 0
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _attach(handle: socket.socket, program: bytes) -> None:
    """Filter what the socket receives, instead of any filter it had before."""
    buffer = ctypes.create_string_buffer(program)
    pointer = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
    handle.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


def _done_failure(reply: Message) -> Failure:
    """The error number inside an NLMSG_DONE, with which a dump may end."""
    number = int.from_bytes(reply.body[:4], sys.byteorder, signed=True) if reply.body else 0
    return Failure(-number if number < 0 else 0, reply.seq)
