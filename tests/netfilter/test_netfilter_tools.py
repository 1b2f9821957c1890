"""Programs, versions, the xtables lock, and running a tool."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest
from tests.support.waiting import until

from kubeproxy.errors import Busy, Drifted, ToolMissing
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.exec import package_of, run_tool
from kubeproxy.kernel.xtables_lock import held_lock, lock_holder, parse_locks
from kubeproxy.modes.netfilter.sinks.tools import (
    Version,
    command_wait_flags,
    parse_version,
    programs,
    restore_wait_flags,
)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("iptables v1.8.9 (nf_tables)", Version((1, 8, 9), is_nft=True)),
        ("iptables v1.8.9 (legacy)", Version((1, 8, 9))),
        ("iptables v1.4.21", Version((1, 4, 21))),
        ("what?", Version()),
    ],
)
def test_versions_are_read(output: str, version: Version) -> None:
    """Number and kind come from what --version prints."""
    assert parse_version(output) == version


@pytest.mark.parametrize(
    ("number", "command", "restore"),
    [
        ((1, 8, 9), ("-w", "5"), ("-w", "5")),
        ((1, 6, 2), ("-w", "5"), ("-w", "5")),
        ((1, 6, 1), ("-w", "5"), ()),
        ((1, 4, 20), ("-w",), ()),
        ((1, 4, 19), (), ()),
    ],
)
def test_wait_flags_follow_the_version(
    number: tuple[int, ...], command: tuple[str, ...], restore: tuple[str, ...]
) -> None:
    """No version is given an option it does not know."""
    version = Version(number)
    assert command_wait_flags(version, 5.0) == command
    assert restore_wait_flags(version, 5.0, understands_version=False) == restore


def test_a_restore_that_knows_its_version_can_wait() -> None:
    """Distributions back-ported -w together with --version."""
    assert restore_wait_flags(Version((1, 6, 1)), 5.0, understands_version=True) == ("-w",)


def test_random_fully_needs_1_6_2() -> None:
    """Compared number by number, not as text."""
    assert Version((1, 10)).has_random_fully
    assert Version((1, 6, 2)).has_random_fully
    assert not Version((1, 6, 1)).has_random_fully


def test_program_names() -> None:
    """Found through PATH, unless a variant is asked for."""
    assert programs(Family.IPV6).restore == "ip6tables-restore"
    assert programs(Family.IPV4, "legacy").save == "iptables-legacy-save"


async def test_a_tool_gets_its_input_and_returns_its_output() -> None:
    """Status, output and error output come back apart."""
    done = await run_tool(["sh", "-c", "cat; echo bad >&2; exit 3"], stdin=b"hello")
    assert (done.status, done.stdout, done.stderr) == (3, "hello", "bad\n")
    assert done.output == "hello\nbad"


async def test_a_missing_tool_names_its_package() -> None:
    """The operator learns what to install."""
    with pytest.raises(ToolMissing, match='install the package "iptables"'):
        await run_tool(["/nowhere/iptables-restore"])
    assert package_of("/usr/sbin/ip6tables-legacy-restore") == "iptables"


async def test_a_stuck_tool_is_killed() -> None:
    """After its time a tool is gone, and its effect unknown."""
    with pytest.raises(Drifted, match=r"did not end within 0.1 s"):
        await run_tool(["sleep", "60"], timeout_seconds=0.1)


async def test_cancelling_kills_the_tool(tmp_path: Path) -> None:
    """No orphan goes on writing rules."""
    pid_file = tmp_path / "pid"
    task = asyncio.create_task(run_tool(["sh", "-c", f"echo $$ > {pid_file}; exec sleep 60"]))
    await until(lambda: pid_file.exists() and pid_file.read_text().strip())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


def test_lock_holders_are_found_and_waiters_are_not() -> None:
    """Only lines about the inode, and only those that hold."""
    text = (
        "1: FLOCK  ADVISORY  WRITE 17 00:1a:4711 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 18 00:1a:4711 0 EOF\n"
        "2: POSIX  ADVISORY  WRITE 19 00:1a:47110 0 EOF\n"
    )
    assert parse_locks(text, 4711) == (17,)


async def test_the_lock_is_held_and_released(tmp_path: Path) -> None:
    """While it is held, the holder is our process with its command."""
    lock, old = tmp_path / "lock", f"\0kubeproxy-test-{os.getpid()}"
    async with held_lock(lock, old):
        assert f"pid {os.getpid()} (" in lock_holder(lock)
    assert lock_holder(lock) == ""


async def test_a_lock_that_cannot_be_had_names_its_holder(tmp_path: Path) -> None:
    """After two seconds the wait ends with pid and command of the holder."""
    lock = tmp_path / "lock"
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(Busy, match=f"held by pid {os.getpid()} \\("):
            async with held_lock(lock, f"\0kubeproxy-test-{os.getpid()}"):
                raise AssertionError("the lock is taken")
