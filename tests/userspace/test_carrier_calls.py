"""What one short connection costs: system calls of the carrier, counted by strace."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.support.userspace_kit import HERE, Proxy, Servers, close
from tests.support.waiting import until, within_limit

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="no strace here")

CONNECTIONS = 20
MOST_CALLS = 19
"""Per connection that carries a request and a response; waiting for events is not counted."""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(100))
    await close(writer)


async def exchange(port: int) -> None:
    reader, writer = await asyncio.open_connection(HERE, port)
    writer.write(b"hello")
    assert await reader.read() == b"hello"
    await close(writer)


async def test_a_short_connection_takes_few_system_calls(
    proxy: Proxy, servers: Servers, tmp_path: Path
) -> None:
    port = await proxy.serve([await servers.tcp(answer)])
    await exchange(port)
    trace = tmp_path / "trace"
    pid = str(proxy.carrier)
    tracer = await asyncio.create_subprocess_exec(
        "strace", "-p", pid, "-o", str(trace), stderr=asyncio.subprocess.PIPE
    )
    assert tracer.stderr is not None
    line = await within_limit(tracer.stderr.readline())
    if b"attached" not in line:
        await tracer.wait()
        pytest.skip(f"strace may not attach: {line.decode()}")
    for _ in range(CONNECTIONS):
        await exchange(port)
    await until(lambda: trace.read_text().count("accept4(") >= CONNECTIONS)
    tracer.send_signal(signal.SIGINT)
    await tracer.wait()
    calls = Counter(text.partition("(")[0] for text in trace.read_text().splitlines())
    calls = Counter({name: n for name, n in calls.items() if not name.startswith("epoll_wait")})
    assert calls["shutdown"] <= CONNECTIONS, calls
    assert calls["setsockopt"] <= 2 * CONNECTIONS, calls
    # Rounded down: the end of the connection before may fall into what is counted.
    assert calls.total() // CONNECTIONS <= MOST_CALLS, calls
