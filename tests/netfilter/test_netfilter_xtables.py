"""Running the iptables programs: options by version, refusals, and the lock."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.waiting import until

from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import Busy, KernelError, ToolMissing
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.xtables_lock import LOCK_FILE, lock_holder
from kubeproxy.modes.netfilter.compile.refusals import RestoreRefused
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.sinks import xtables
from kubeproxy.modes.netfilter.sinks.xtables import Xtables

EMPTY = "*nat\nCOMMIT\n"


class Programs:
    """Programs of our own making, first in PATH, that note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "calls"

    def install(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{script}\n')
        path.chmod(0o755)

    def calls(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if "--version" not in line]


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Programs(tmp_path)


@pytest.mark.parametrize(
    ("version", "restore_version", "command", "restore"),
    [
        ("v1.8.9 (nf_tables)", "v1.8.9", "iptables -w 5 -S", "iptables-restore -w 5 --noflush"),
        ("v1.6.1", "v1.6.1", "iptables -w 5 -S", "iptables-restore -w --noflush"),
        ("v1.4.20", "", "iptables -w -S", "iptables-restore --noflush"),
    ],
)
async def test_options_follow_the_version(
    fakes: Programs, version: str, restore_version: str, command: str, restore: str
) -> None:
    """Each program is only given the wait option it knows."""
    fakes.install("iptables", f'[ "$1" = --version ] && echo "iptables {version}"; exit 0')
    fakes.install("iptables-restore", f'[ "$1" = --version ] && echo "{restore_version}"; exit 0')
    tables = Xtables(Family.IPV4, ToolOptions())
    await tables.require_chain("nat", "X")
    await tables.restore(EMPTY)
    called, restored = fakes.calls()
    assert called.startswith(command)
    assert restored == f"{restore} --counters"


async def test_concurrent_first_calls_all_wait_for_the_lock(fakes: Programs) -> None:
    """No call runs before all options are known, however slowly the tools tell their version."""
    slow = '[ "$1" = --version ] && { sleep 0.2; echo "iptables v1.6.1"; }; exit 0'
    fakes.install("iptables", 'echo "iptables v1.6.1"')
    fakes.install("iptables-restore", slow)
    tables = Xtables(Family.IPV4, ToolOptions())

    async def second() -> None:
        await until(lambda: fakes.log.exists() and "iptables-restore" in fakes.log.read_text())
        await tables.require_chain("nat", "X")

    await asyncio.gather(tables.restore(EMPTY), second())
    assert sorted(fakes.calls()) == [
        "iptables -w 5 -S X -t nat",
        "iptables-restore -w --noflush --counters",
    ]


class RecordedWatcher:
    """Records what it is given."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def begin(self) -> None:
        self.given.append("begin")

    def end(self, *, succeeded: bool) -> None:
        self.given.append(f"end, {succeeded=}")

    def take(self) -> str:
        return ""

    def close(self) -> None: ...


async def test_a_watcher_that_comes_during_a_write_learns_of_its_end(fakes: Programs) -> None:
    """It has seen the tables before the write, and would report our own change."""
    fakes.install("iptables", 'echo "iptables v1.8.9 (legacy)"')
    release = fakes.folder / "release"
    fakes.install("iptables-restore", f"while [ ! -e {release} ]; do sleep 0.01; done")
    tables, watcher = Xtables(Family.IPV4, ToolOptions()), RecordedWatcher()

    async def watch() -> None:
        await until(lambda: fakes.log.exists() and "iptables-restore" in fakes.log.read_text())
        tables.watcher = watcher
        release.touch()

    await asyncio.gather(tables.restore(EMPTY), watch())
    assert watcher.given == ["end, succeeded=True"]


async def test_programs_are_asked_for_their_version_once(fakes: Programs) -> None:
    """Of all that need to know it at a start; a restore only if it may be too old to wait."""
    fakes.install("iptables", 'echo "iptables v1.8.9 (nf_tables)"')
    fakes.install("iptables-restore", "exit 0")
    for _ in range(3):
        await Xtables(Family.IPV4, ToolOptions()).restore(EMPTY)
    runs = fakes.log.read_text().splitlines()
    assert [run for run in runs if "--version" in run] == ["iptables --version"]


async def test_a_restore_without_wait_option_runs_under_our_lock(
    fakes: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old iptables-restore takes no lock itself, so it is held around the call."""
    fakes.install("iptables", 'echo "iptables v1.4.19"')
    fakes.install("iptables-restore", f"cat /proc/locks > {fakes.folder}/locks; exit 0")
    await Xtables(Family.IPV4, ToolOptions()).restore(EMPTY)
    inode = LOCK_FILE.stat().st_ino
    assert f":{inode} " in (fakes.folder / "locks").read_text()


async def test_a_refusal_carries_line_and_words(fakes: Programs) -> None:
    """The error has the tool's message and the line it named."""
    fakes.install("iptables", 'echo "iptables v1.8.9 (nf_tables)"')
    fakes.install("iptables-restore", 'echo "x: line 7 failed: No luck." >&2; exit 1')
    with pytest.raises(RestoreRefused, match="status 1: x: line 7 failed: No luck") as caught:
        await Xtables(Family.IPV4, ToolOptions()).restore(EMPTY)
    assert caught.value.line == 7


async def test_a_failing_save_is_not_an_empty_table(fakes: Programs) -> None:
    """An error must never look like "nothing is there"."""
    fakes.install("iptables", 'echo "iptables v1.8.9 (nf_tables)"')
    fakes.install("iptables-save", "echo broken >&2; exit 3")
    with pytest.raises(KernelError, match="iptables-save ended with status 3: broken"):
        await Xtables(Family.IPV4, ToolOptions()).save("nat")


async def test_missing_programs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package to install is part of the message; the family counts as absent."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match='install the package "iptables"'):
        await Xtables(Family.IPV4, ToolOptions()).save("nat")
    assert not await Xtables(Family.IPV6, ToolOptions()).is_present()


@pytest.fixture
def held_xtables_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The lock of iptables, held by this very process; not the one that other tests wait for."""
    lock = tmp_path / "xtables.lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    monkeypatch.setattr(xtables, "lock_holder", partial(lock_holder, lock))
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@pytest.mark.kernel
async def test_a_lock_that_cannot_be_had_names_the_holder(held_xtables_lock: None) -> None:
    """iptables-legacy gives up after its wait; the message names the holder of the lock."""
    with scratch_namespace():
        tables = Xtables(Family.IPV4, ToolOptions(lock_timeout_seconds=1.0, variant="legacy"))
        with pytest.raises(Busy, match=f"waited 1 s .* held by pid {os.getpid()} \\("):
            await tables.restore(EMPTY)


@pytest.mark.kernel
@pytest.mark.parametrize("variant", ["nft", "legacy"])
async def test_calls_of_one_family_do_not_overlap(variant: str) -> None:
    """Concurrent callers take turns and all succeed."""
    with scratch_namespace():
        tables = Xtables(Family.IPV4, ToolOptions(variant=variant))
        chains = [f"KUBE-{number}" for number in range(8)]
        texts = [f"*nat\n:{chain} - [0:0]\nCOMMIT\n" for chain in chains]
        await asyncio.gather(*map(tables.restore, texts))
        saved = await tables.save("nat")
        assert all(f":{chain} - " in saved for chain in chains)
        assert await tables.has_chain("nat", "KUBE-0")
        assert not await tables.has_chain("nat", "KUBE-8")
