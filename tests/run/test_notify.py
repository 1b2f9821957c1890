"""Notifications to the service manager, received by a socket that stands for systemd's."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.host import Host
from tests.support.waiting import limit, within_limit

from kubeproxy.run.notify import Notifier, take_notifier

SECOND = "1000000"


class Manager:
    """A datagram socket with what arrived at it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)

    def received(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    path = str(tmp_path / "notify")
    made = Manager(path if request.param == "path" else f"@kubeproxy-test-{os.getpid()}")
    yield made
    made.close()


def test_ready_comes_with_a_status(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": manager.address}
    take_notifier(environment, os.getpid()).ready("Serving 3 services")
    assert manager.received() == ["READY=1\nSTATUS=Serving 3 services"]


def test_tools_do_not_inherit_the_socket(manager: Manager) -> None:
    environment = {
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
        "A": "b",
    }
    take_notifier(environment, os.getpid())
    assert environment == {"A": "b"}


async def fed(notifier: Notifier, manager: Manager, count: int) -> list[str]:
    """What arrives until `count` datagrams have."""
    task = asyncio.create_task(notifier.feed_watchdog(lambda: True))
    arrived: list[str] = []
    async with limit():
        while len(arrived) < count:
            await asyncio.sleep(0.001)
            arrived += manager.received()
    task.cancel()
    return arrived


async def test_the_watchdog_is_fed_again_and_again(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000"}
    notifier = take_notifier(environment, os.getpid())
    assert set(await fed(notifier, manager, 3)) == {"WATCHDOG=1"}


async def test_a_proxy_that_does_not_work_feeds_nothing(manager: Manager) -> None:
    notifier, asked = Notifier(manager.address, watchdog_seconds=0.002), asyncio.Event()
    answers = iter([True, False, False])

    def is_alive() -> bool:
        answer = next(answers, None)
        if answer is None:
            asked.set()
        return bool(answer)

    task = asyncio.create_task(notifier.feed_watchdog(is_alive))
    await within_limit(asked.wait())
    task.cancel()
    assert manager.received() == ["WATCHDOG=1"]


@pytest.mark.parametrize(
    "environment",
    [
        {"WATCHDOG_USEC": SECOND},
        {"NOTIFY_SOCKET": "@x"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": SECOND, "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "-5"},
        {"NOTIFY_SOCKET": "vsock:2:1", "WATCHDOG_USEC": SECOND},
    ],
)
async def test_without_a_watchdog_of_ours_feeding_ends_at_once(environment: dict[str, str]) -> None:
    notifier = take_notifier(environment, os.getpid())
    await within_limit(notifier.feed_watchdog(lambda: pytest.fail("asked")))


def test_without_a_manager_no_socket_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("a socket was made"))
    take_notifier({}, os.getpid()).ready("Serving")


@pytest.mark.parametrize("address", ["/nowhere/notify", "@kubeproxy-test-gone", "/" + "x" * 200])
def test_a_manager_that_is_gone_is_no_error(address: str) -> None:
    take_notifier({"NOTIFY_SOCKET": address}, os.getpid()).ready("Serving")


def test_a_manager_that_does_not_read_does_not_hold_us_up(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    for _ in range(2000):  # far more than a socket holds
        notifier.ready("Serving")
    assert len(manager.received()) < 2000


WEB = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}
"""


@pytest.mark.kernel
def test_the_daemon_is_ready_after_its_first_sync_and_feeds_while_it_runs(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    (host.manifests / "web.yaml").write_text(WEB)
    process = host.start("--proxy-mode=nftables")
    arrived: list[str] = []

    def has(text: str) -> bool:
        arrived.extend(manager.received())
        return text in arrived

    ready = "READY=1\nSTATUS=Serving 1 services in nftables mode"
    host.until(lambda: has(ready), "readiness")
    assert "10.96.0.10" in host.tables()
    arrived.clear()
    host.until(lambda: has("WATCHDOG=1"), "feeding")
    assert host.stop(process) == 0
    manager.close()
