"""Checks over real sockets at loopback: endpoints that answer, refuse, stay silent, or attack."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.checked import HERE, OK, Endpoints, Watched, open_descriptors, watching
from tests.support.waiting import until, until_async

from kpctl.apiserver.pki import make_authority
from kubeproxy.checks.checker import SKIPPED, SUCCESS, Checker
from kubeproxy.checks.schedule import Target
from kubeproxy.checks.sockets import CheckSockets
from kubeproxy.facts.policy import CheckKind, HealthCheck

QUICK = "timeout=100ms fall=1 rise=1"


@pytest.fixture
async def endpoints() -> AsyncIterator[Endpoints]:
    made = Endpoints()
    yield made
    await made.close()


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    async with watching() as made:
        yield made


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for another name, of an authority that is not known to anyone, and its key."""
    folder: Path = tmp_path_factory.mktemp("pki")
    certificate, key = make_authority(folder).sign("server", "/CN=elsewhere.example")
    return str(certificate), str(key)


@pytest.fixture
def tls(tls_files: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*tls_files)
    return context


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HERE, 0))
        return int(sock.getsockname()[1])


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HERE, port)
    except OSError:
        return False
    writer.close()
    return True


# --- the four kinds ---


async def test_a_tcp_port_that_listens_passes(endpoints: Endpoints, watched: Watched) -> None:
    port = await endpoints.http()
    assert await watched.passes("tcp", port)
    assert endpoints.requests == []


async def test_a_program_never_sees_a_tcp_check(endpoints: Endpoints, watched: Watched) -> None:
    """The connection is reset before it is complete, so that there is nothing to accept."""
    listener = socket.socket()
    listener.bind((HERE, 0))
    listener.listen(5)
    listener.setblocking(False)
    try:
        # With a queue of 5, a sixth check would go unanswered.
        assert await watched.passes("tcp", listener.getsockname()[1], times=20)
    finally:
        listener.close()


async def test_a_port_that_refuses_fails(endpoints: Endpoints, watched: Watched) -> None:
    assert await watched.reason("tcp fall=3", endpoints.refusing()) == "connection refused"
    assert watched.ended_by_change == [3]
    assert set(watched.checker.outcomes) == {("tcp", "refused")}
    assert watched.checker.failing == watched.checker.targets == 1


@pytest.mark.parametrize("kind", ["tcp", "http /", "https /"])
async def test_a_port_that_does_not_answer_fails(
    endpoints: Endpoints, watched: Watched, kind: str
) -> None:
    reason = await watched.reason(f"{kind} {QUICK}", endpoints.silent())
    assert reason == "no answer within 100ms"


async def test_an_address_that_cannot_be_reached_fails(watched: Watched) -> None:
    """The network 240.0.0.0/4 is reserved, and no host has a route to it beyond the default."""
    reason = await watched.reason(f"tcp {QUICK}", 80, "255.255.255.255")
    assert reason in {os.strerror(errno.EACCES).lower(), os.strerror(errno.ENETUNREACH).lower()}


async def test_http_asks_for_the_path_and_looks_at_the_status(
    endpoints: Endpoints, watched: Watched
) -> None:
    assert await watched.passes("http /healthz?full host=web.example", await endpoints.http())
    assert endpoints.requests[0].startswith(b"GET /healthz?full HTTP/1.1\r\nHost: web.example\r\n")
    port = await endpoints.http(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
    assert await watched.reason("http /healthz fall=1", port) == "status 503"
    assert await watched.passes("http /healthz status=503", port)


async def test_https_does_not_verify_certificates(
    endpoints: Endpoints, watched: Watched, tls: ssl.SSLContext
) -> None:
    port = await endpoints.http(tls=tls)
    assert await watched.passes("https /healthz host=web.example", port)
    port = await endpoints.http(b"HTTP/1.1 404 Not Found\r\n\r\n", tls=tls)
    assert await watched.reason("https / fall=1", port) == "status 404"


async def test_https_to_a_port_without_tls_fails(endpoints: Endpoints, watched: Watched) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()

    port = await endpoints.tcp(answer)
    assert (await watched.reason("https / fall=1", port)).startswith("TLS: ")


async def test_udp_expects_an_answer(endpoints: Endpoints, watched: Watched) -> None:
    port = await endpoints.udp(b"pong 7")
    assert await watched.passes("udp send=ping expect=pong", port)
    assert set(endpoints.requests) == {b"ping"}
    assert await watched.reason("udp fall=1 expect=PONG", port) == (
        "the answer is not the expected one"
    )
    assert await watched.reason(f"udp {QUICK}", await endpoints.udp(None)) == (
        "no answer within 100ms"
    )
    refusing = endpoints.refusing(socket.SOCK_DGRAM)
    assert await watched.reason("udp fall=2", refusing) == "connection refused"


async def test_ipv6(endpoints: Endpoints, watched: Watched) -> None:
    assert await watched.passes("http /", await endpoints.http(host="::1"), "::1")
    assert b"\r\nHost: [::1]:" in endpoints.requests[0]


# --- over time ---


async def test_an_endpoint_that_recovers_passes_again(
    endpoints: Endpoints, watched: Watched
) -> None:
    port = endpoints.refusing()
    target = watched.add("http / fall=2 rise=2", port)
    await until(lambda: len(watched.changes) == 1)
    await endpoints.close()
    await endpoints.http(port=port)
    await until(lambda: len(watched.changes) == 2)
    assert watched.changes == [(target, "connection refused"), (target, "")]
    assert watched.checker.failing == 0


async def test_no_endpoint_fails_before_its_checks_have(
    endpoints: Endpoints, watched: Watched
) -> None:
    """As after a restart, which remembers nothing: all that is there counts as passing."""
    # Not two of three: a test that is late would find the third.
    target = watched.add("tcp fall=100", endpoints.refusing())
    assert target.condition.failure is None
    await until(lambda: watched.ended >= 2)
    assert target.condition.failure is None
    assert watched.changes == []


async def test_a_target_that_goes_while_it_is_checked(
    endpoints: Endpoints, watched: Watched
) -> None:
    target = watched.add("tcp", endpoints.silent())
    before = open_descriptors()
    await until(lambda: open_descriptors() > before)
    watched.checker.remove(target)
    assert watched.ended == 0
    assert watched.checker.targets == 0


async def test_sockets_are_used_again_and_closed_at_the_end(endpoints: Endpoints) -> None:
    good, bad, quiet = await endpoints.http(), endpoints.refusing(), endpoints.silent()
    before = open_descriptors()
    async with watching() as watched:
        for text in ("tcp", "http /"):
            for port in (good, bad, quiet):
                watched.add(f"{text} timeout=100ms", port)
        await until(lambda: watched.ended > 100)
        assert open_descriptors() <= before + 1 + 6 + 6  # epoll, ours, the server's ends
    await until(lambda: open_descriptors() <= before)


async def test_nothing_is_scheduled_without_targets() -> None:
    loop = asyncio.get_running_loop()
    before = len(loop._scheduled)  # type: ignore[attr-defined]
    async with watching():
        assert len(loop._scheduled) == before  # type: ignore[attr-defined]


# --- attacks ---

ATTACKS = {
    "garbage": (b"\0\xff" * 1000, "the answer is not HTTP"),
    "nothing": (b"", "the connection ended before a status"),
    "half a status": (b"HTTP/1.1 2", "the connection ended before a status"),
    "interim responses": (b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, "the answer is not HTTP"),
    "endless headers of one": (
        b"HTTP/1.1 103 Early Hints\r\n" + b"a: b\r\n" * 10_000,
        "the answer is not HTTP",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_answer_that_is_none(endpoints: Endpoints, watched: Watched, name: str) -> None:
    answer, reason = ATTACKS[name]
    assert await watched.reason("http / fall=1", await endpoints.http(answer)) == reason


async def test_an_answer_that_never_ends_is_not_read_to_the_end(
    endpoints: Endpoints, watched: Watched
) -> None:
    """The status decides. The rest stays where it is, and the connection is reset."""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x-more: " + b"x" * 65536 + b"\r\n")
            await writer.drain()

    assert await watched.passes("http /", await endpoints.tcp(endless))


async def test_an_answer_that_comes_byte_by_byte_ends_with_the_time_out(
    endpoints: Endpoints, watched: Watched
) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in b"HTTP/1.1 103 Early Hints\r\n" + b"x" * 1000:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.01)

    reason = await watched.reason(f"http / {QUICK}", await endpoints.tcp(slow))
    assert reason == "no answer within 100ms"


async def test_a_tls_handshake_that_stops_in_the_middle(
    endpoints: Endpoints, watched: Watched
) -> None:
    async def stalled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x16\x03\x03\x40\x00")  # a record of 16 kB that never comes
        await reader.read(-1)

    assert await watched.reason(f"https / {QUICK}", await endpoints.tcp(stalled)) == (
        "no answer within 100ms"
    )


async def test_an_endpoint_cannot_make_a_tls_handshake_expensive(
    watched: Watched, tls_files: tuple[str, str]
) -> None:
    """Keys over a finite field of 8,192 bits take 160 ms of the loop that syncs."""
    certificate, key = tls_files
    port = free_port()
    command = f"openssl s_server -accept {HERE}:{port} -cert {certificate} -key {key} -quiet"
    server = await asyncio.create_subprocess_exec(
        *command.split(),
        *("-tls1_3", "-groups", "ffdhe8192"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await until_async(lambda: is_listening(port))
        assert (await watched.reason("https / fall=1", port)).startswith("TLS: ")
    finally:
        server.kill()
        await server.wait()


async def test_endpoints_that_never_cease_to_send_do_not_stop_other_checks(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is always something that was not looked at; others begin and time out all the same."""
    connected: list[asyncio.StreamWriter] = []

    async def noisy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer)
        writer.write(b"HTTP/1.1 103 Early Hints\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    monkeypatch.setattr("kubeproxy.checks.checker.STEP_SECONDS", 0.0)
    monkeypatch.setattr("kubeproxy.checks.answers.MOST_BYTES", 1 << 20)  # some hours of noise
    port, good, quiet = await endpoints.tcp(noisy), await endpoints.http(), endpoints.silent()
    async with watching(most_at_once=200) as watched:
        for _ in range(100):
            watched.add("http /", port)
        await until(lambda: len(connected) >= 64)
        watched.add("http /", good)
        assert await watched.reason(f"tcp {QUICK}", quiet) == "no answer within 100ms"
        await until(lambda: watched.checker.outcomes["http", SUCCESS] > 0)
        # And not only because the noisy ones have sent too much: none of them has ended.
        assert {outcome for kind, outcome in watched.checker.outcomes if kind == "http"} == {
            SUCCESS
        }


async def test_few_checks_go_on_before_the_time_is_looked_at(endpoints: Endpoints) -> None:
    """A TLS handshake takes a millisecond, or ten if the endpoint chose its key accordingly."""
    port = await endpoints.http()
    ended: list[Target] = []
    sockets = CheckSockets(lambda target, failure: ended.append(target), lambda *_: None)
    for _ in range(50):
        sockets.begin(Target(HealthCheck(CheckKind.TCP), HERE, port))
    assert not sockets.go_on(until=0.0)
    assert len(ended) <= 8
    await until(lambda: sockets.go_on(until=0.0))
    sockets.close()


async def test_bad_endpoints_do_not_disturb_the_others(endpoints: Endpoints) -> None:
    """All silent ones wait at the same time, and their number is limited: good ones go on."""
    good, quiet = await endpoints.http(), endpoints.silent()
    async with watching(most_at_once=20) as watched:
        for number in range(15):
            watched.add("tcp timeout=100ms fall=1", quiet, f"127.0.0.{number + 1}")
        watched.add("http /", good)
        await until(lambda: watched.checker.outcomes["http", SUCCESS] > 20)
        await until(lambda: watched.checker.failing >= 1)
        assert {outcome for kind, outcome in watched.checker.outcomes if kind == "http"} == {
            SUCCESS
        }


async def test_a_host_that_is_out_of_descriptors_blames_no_endpoint(
    endpoints: Endpoints, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    target = watched.add("udp send=x fall=1", await endpoints.udp(b"y"))
    monkeypatch.setattr(socket, "socket", exhausted)
    await until(lambda: watched.checker.outcomes["udp", SKIPPED] > 3)
    monkeypatch.undo()
    await until(lambda: watched.checker.outcomes["udp", SUCCESS] > 0)
    assert target.condition.failure is None
    assert watched.changes == []


async def test_few_descriptors_leave_room_for_everything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    checker = Checker(lambda _: None)
    assert checker._schedule._most_at_once == 16
    checker.close()
