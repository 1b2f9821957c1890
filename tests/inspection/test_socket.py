"""The socket of the inspection API: private, replaced when stale, never taken from another."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from tests.support.waiting import limit

from kpctl.snapshot.client import UnixConnection
from kubeproxy.inspection.server import InspectionServer, listen_at
from kubeproxy.status.http import Request, Response


def hello(request: Request) -> Response:
    return Response(b"hello")


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[InspectionServer]:
    server = InspectionServer(str(path), hello)
    task = asyncio.create_task(server.run())
    try:
        async with limit():
            await server.is_serving.wait()
        yield server
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def get(path: Path) -> bytes:
    with closing(UnixConnection(path)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().read()


async def test_only_the_own_user_may_ask(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "sock"
    async with served(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert await asyncio.to_thread(get, path) == b"hello"
    assert not path.exists()


async def test_a_socket_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    listen_at(path).close()
    assert path.is_socket()
    async with served(path):
        assert await asyncio.to_thread(get, path) == b"hello"


async def test_a_socket_that_another_process_serves_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.Event().wait()

    async with served(path):
        second = asyncio.create_task(InspectionServer(str(path), hello, sleep=pause).run())
        async with limit():
            while not pauses:
                await asyncio.sleep(0)
        second.cancel()
        assert await asyncio.to_thread(get, path) == b"hello"


async def test_a_place_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path, pauses = tmp_path / "file" / "sock", 0

    async def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        (tmp_path / "file").unlink(missing_ok=True)

    server = InspectionServer(str(path), hello, sleep=pause)
    task = asyncio.create_task(server.run())
    async with limit():
        await server.is_serving.wait()
    assert pauses == 1
    task.cancel()
