"""The kernel's word on commits."""

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import LIMIT_SECONDS, until

from kpctl.bench.commits import CommitClock, RestoreTools, nft_clock, nft_ipv4_clock
from kpctl.places.scratch import scratch_namespace


class _Pipe:
    """A commit clock's source that a test writes to."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)

    def fileno(self) -> int:
        return self._reader

    def commit(self) -> None:
        os.write(self._writer, b"\n")

    def read(self) -> int:
        return os.read(self._reader, 100).count(b"\n")

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


async def test_moments_are_waited_for_and_kept() -> None:
    """The first since a moment is found when it comes; all are remembered in order."""
    pipe = _Pipe()
    clock = CommitClock(pipe, pipe.read)
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    loop.call_later(0.01, pipe.commit)
    first = await clock.first_after(began, LIMIT_SECONDS)
    assert first is not None
    loop.call_later(0.01, pipe.commit)  # not before: two that are read at once have one moment
    second = await clock.first_after(first + 1e-9, LIMIT_SECONDS)
    clock.close()
    assert clock.since(began) == [first, second]
    assert clock.since(first + 1e-9) == [second]
    assert len(clock) == 2


async def test_nothing_committed_is_nothing() -> None:
    """The limit passes and there is no moment."""
    pipe = _Pipe()
    clock = CommitClock(pipe, pipe.read)
    assert await clock.first_after(time.monotonic(), 0.01) is None
    clock.close()


@pytest.fixture
def namespace() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with scratch_namespace():
        yield


@pytest.mark.kernel
async def test_each_nftables_transaction_is_one_commit(namespace: None) -> None:
    """However many objects it has; a listing is none."""
    clock = nft_clock()
    chains = "".join(f"add chain ip t c{n}\n" for n in range(50))
    for text in (f"add table ip t\n{chains}", "list ruleset\n", "delete table ip t\n"):
        subprocess.run(["nft", "-f", "-"], input=text.encode(), check=True, capture_output=True)
    await until(lambda: len(clock) >= 2)
    await asyncio.sleep(0.05)
    clock.close()
    assert len(clock) == 2


@pytest.mark.kernel
async def test_commits_of_ipv4_are_distinguished_from_those_of_ipv6(namespace: None) -> None:
    """What changes nothing of IPv4 is no commit for this clock."""
    clock = nft_ipv4_clock()
    for text in ("add table ip6 t\n", "add table inet t\n"):
        subprocess.run(["nft", "-f", "-"], input=text.encode(), check=True, capture_output=True)
    assert await clock.first_after(0, 0.1) is None
    subprocess.run(["nft", "add", "table", "ip", "t"], check=True)
    assert await clock.first_after(0, LIMIT_SECONDS) is not None
    clock.close()


@pytest.mark.kernel
async def test_the_end_of_a_restore_is_a_commit(namespace: None, tmp_path: Path) -> None:
    """The wrapper runs the old iptables and keeps its status; asking for a version is none."""
    tools = RestoreTools(tmp_path / "tools")
    clock = tools.clock()
    environment = {**os.environ, **tools.environment()}

    async def restore(text: bytes, *options: str) -> int:
        process = await asyncio.create_subprocess_exec(
            *("iptables-restore", *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        await process.communicate(text)
        return await process.wait()

    assert await restore(b"", "--version") == 0
    assert len(clock) == 0
    assert await restore(b"*nat\n:KUBE-X - [0:0]\nCOMMIT\n", "--noflush") == 0
    assert await clock.first_after(0, LIMIT_SECONDS) is not None
    assert await restore(b"*nat\n-A MISSING -j ACCEPT\nCOMMIT\n", "--noflush") != 0
    clock.close()
    listed = subprocess.run(
        ["iptables-legacy-save", "-t", "nat"], capture_output=True, text=True, check=True
    )
    assert ":KUBE-X" in listed.stdout
