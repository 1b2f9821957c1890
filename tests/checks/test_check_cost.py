"""What one check costs: system calls, counted by strace, and steps of Python.

10,000 endpoints every 10 s are 1,000 checks a second: 5 % of a core are 50 µs for each.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.checked import HERE, OK
from tests.support.waiting import LIMIT_SECONDS

from kpctl.bench.growth import counting_steps
from kubeproxy.api.annotations import parse_health_check
from kubeproxy.checks.attempts import UdpAttempt
from kubeproxy.checks.condition import Failure
from kubeproxy.checks.schedule import Schedule, Target
from kubeproxy.checks.sockets import CheckSockets

CHECKS = 128
INTERVAL_SECONDS = 10.0

MOST_CALLS = {"tcp": 2, "http /": 4, "udp send=ping": 6}
"""A connection that is made and ended; with HTTP a request and an answer besides; UDP has a socket
for each check. Looking for events is one call for four of them, and is not counted."""
MOST_STEPS = {"tcp": 450, "http /": 800, "udp send=ping": 640}
"""Bytecode: a quarter more than it takes if events come in bulk."""

COUNTED = "trace=%network,close,epoll_ctl,ioctl,fcntl,access"
BEGIN, END = "/checks begin", "/checks end"
"""Looked for in order to be seen in the trace."""


class Server:
    """Answers in a thread of its own, whose work is not counted; of TCP checks it sees nothing."""

    def __init__(self, kind: str) -> None:
        self._is_datagram = kind.startswith("udp")
        self._socket = socket.socket(type=socket.SOCK_DGRAM if self._is_datagram else 1)
        self._socket.bind((HERE, 0))
        if not self._is_datagram:
            self._socket.listen(4 * CHECKS)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._answer()

    def _answer(self) -> None:
        if self._is_datagram:
            data, peer = self._socket.recvfrom(100)
            if not data:
                raise ConnectionAbortedError
            self._socket.sendto(b"pong", peer)
            return
        connection, _ = self._socket.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(OK)

    def close(self) -> None:
        if self._is_datagram:
            self._socket.sendto(b"", (HERE, self.port))
        else:
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


class Checks:
    """Targets of one kind, checked whenever a test says so: there is no clock."""

    def __init__(self, text: str) -> None:
        check = parse_health_check(text)
        assert check is not None
        self._server = Server(text)
        self._now = 0.0
        self._schedule = Schedule(lambda: 0.5, most_at_once=CHECKS, most_per_step=CHECKS)
        self._sockets = CheckSockets(self._finished, self._skipped)
        self.outcomes: Counter[str] = Counter()
        for _ in range(CHECKS):
            self._schedule.add(Target(check, HERE, self._server.port), self._now)

    def _finished(self, target: Target, failure: Failure | None) -> None:
        self._schedule.finish(target, failure)
        self.outcomes[failure.reason if failure else ""] += 1

    def _skipped(self, target: Target, reason: str) -> None:
        raise AssertionError(reason)

    def check_all(self) -> None:
        """Check every target once. Between events it sleeps, so that waiting costs nothing."""
        self._now += 2 * INTERVAL_SECONDS
        for target in self._schedule.start(self._now):
            self._sockets.begin(target)
        while len(self._sockets):
            assert self._sockets._epoll is not None
            assert select.select([self._sockets._epoll], [], [], LIMIT_SECONDS)[0]
            self._sockets.go_on(math.inf)

    def close(self) -> None:
        self._sockets.close()
        self._server.close()


@contextlib.contextmanager
def warm(kind: str) -> Iterator[Checks]:
    """Checks that have been made once: sockets that are used again are there."""
    checks = Checks(kind)
    try:
        checks.check_all()
        yield checks
        assert checks.outcomes == {"": 2 * CHECKS}
    finally:
        checks.close()


@pytest.mark.parametrize("kind", MOST_STEPS)
def test_a_check_takes_few_steps_of_python(kind: str) -> None:
    with warm(kind) as checks, counting_steps() as steps:
        checks.check_all()
        taken = steps() / CHECKS
    assert taken <= MOST_STEPS[kind]


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace here")
@pytest.mark.parametrize("kind", MOST_CALLS)
def test_a_check_takes_few_system_calls(kind: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with warm(kind) as checks, traced(trace):
        os.access(BEGIN, os.F_OK)
        checks.check_all()
        os.access(END, os.F_OK)
    _, _, rest = trace.read_text().partition(BEGIN)
    lines = rest.partition(END)[0].splitlines()[1:-1]
    calls = Counter(line.partition("(")[0] for line in lines if line.endswith(")") or "=" in line)
    assert calls["connect"] >= CHECKS, calls
    assert calls.total() / CHECKS <= MOST_CALLS[kind], calls


def test_room_for_another_datagram_is_no_answer() -> None:
    """The kernel reports it as soon as the first one has left; reading then finds nothing."""
    check = parse_health_check("udp send=ping")
    assert check is not None
    ours, theirs = socket.socketpair(type=socket.SOCK_DGRAM)
    with ours, theirs:
        attempt = UdpAttempt(Target(check, HERE, 1), ours)
        assert not attempt.ready(select.EPOLLOUT)
        assert theirs.recv(100) == b"ping"
        theirs.send(b"pong")
        assert not attempt.ready(select.EPOLLOUT)
        assert attempt.ready(select.EPOLLIN | select.EPOLLOUT)


@contextlib.contextmanager
def traced(trace: Path) -> Iterator[None]:
    """Write what this thread calls to a file. Other threads are not looked at."""
    tracer = subprocess.Popen(
        ["strace", "-p", str(os.getpid()), "-o", str(trace), "-e", COUNTED],
        stderr=subprocess.PIPE,
    )
    assert tracer.stderr is not None
    line = tracer.stderr.readline()
    if b"attached" not in line:
        tracer.communicate()
        pytest.skip(f"strace may not attach: {line.decode()}")
    try:
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
