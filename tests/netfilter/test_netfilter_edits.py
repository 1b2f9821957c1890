"""Edits by other programs: noticed within seconds, repaired, and no reason to look all the time."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shlex
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.engine_kit import RecordedDrifts, RecordedRounds
from tests.support.waiting import LIMIT_SECONDS, until, until_async

from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.xtables_info import TableInfo
from kubeproxy.kernel.xtables_lock import foreign_lock_holder, lock_holder
from kubeproxy.modes.base import AnyBackend
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.iptables.scaffold import SCOPE
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.sinks.monitor import POLL_SECONDS, RETRY_SECONDS, EditMonitor, Pace
from kubeproxy.modes.netfilter.sinks.watchers import NoticeWatcher, SizeWatcher
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine, EngineTimes

ENDPOINTS = {
    Family.IPV4: ("10.96.0.10", "10.244.1.1", "10.244.2.2"),
    Family.IPV6: ("fd00:96::a", "fd00:244::1", "fd00:244::2"),
}
FLAVOURS = [
    (Family.IPV4, "nft"),
    (Family.IPV4, "legacy"),
    (Family.IPV6, "nft"),
    (Family.IPV6, "legacy"),
]


class Host:
    """One engine with its backend at work, and another program's hands on the same tables."""

    def __init__(self, backend: AnyBackend, variant: str) -> None:
        self.backend = backend
        self._tool = f"{'ip6tables' if backend.family is Family.IPV6 else 'iptables'}-{variant}"
        self.rounds = RecordedRounds()
        self.engine = Engine(
            backend,
            node(backend.family),
            clock=SystemClock(),
            listener=self.rounds,
            times=EngineTimes(min_seconds=0),
        )
        address, *pods = ENDPOINTS[backend.family]
        self.engine.pipeline.store.set_service(service(cluster_ip=address, node_port=30080))
        found = [endpoint(pod) for pod in pods]
        self.engine.pipeline.store.set_slice(endpoint_slice(endpoints=found))

    def edit(self, words: str) -> None:
        """Do what another program does with `iptables`."""
        subprocess.run([self._tool, "-w", *shlex.split(words)], check=True, capture_output=True)

    def saved(self, table: str = "nat") -> list[str]:
        """Chains and rules as they are now, without what changes by itself."""
        done = subprocess.run(
            [f"{self._tool}-save", "-t", table], check=True, capture_output=True, text=True
        )
        # Behind a chain's name stand its counters.
        lines = [line.removesuffix(" [0:0]") for line in done.stdout.splitlines()]
        return [line for line in lines if not line.startswith("#") and "CANARY" not in line]

    @property
    def full_rounds(self) -> int:
        return sum(report.is_full for report in self.rounds.reports)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Run engine and watch, from after the first round on."""
        await self.backend.start(self.engine.pipeline.node)
        work = [
            asyncio.create_task(self.backend.watch(self.engine.report_drift)),
            asyncio.create_task(self.engine.run()),
        ]
        self.engine.mark_synced()
        try:
            await until_async(self._is_settled)
            yield
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await self.backend.close()

    async def _is_settled(self) -> bool:
        """Is the first round over, and are the canaries set?"""
        chains = [line for table in ("filter", "nat") for line in self.saved_chains(table)]
        return bool(self.rounds.reports) and len(chains) >= 4

    def saved_chains(self, table: str) -> list[str]:
        return [line for line in self.saved(table) if line.startswith(":KUBE")]


def iptables_host(family: Family, variant: str) -> Host:
    return Host(IptablesBackend(family, Options(tools=ToolOptions(variant=variant))), variant)


@pytest.fixture(params=FLAVOURS, ids=lambda given: f"{given[0].value} {given[1]}")
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    with scratch_namespace():
        yield iptables_host(*request.param)


def _first(lines: list[str], words: str) -> str:
    return next(line for line in lines if words in line).removeprefix("-A ")


def flush(host: Host) -> None:
    host.edit("-t nat -F KUBE-SERVICES")


def delete_endpoint_rule(host: Host) -> None:
    host.edit(f"-t nat -D {_first(host.saved(), '-j DNAT')}")


def delete_jump(host: Host) -> None:
    host.edit(f"-t nat -D {_first(host.saved(), '-A PREROUTING ')}")


def insert_rule(host: Host) -> None:
    host.edit("-t nat -I KUBE-SERVICES -j RETURN")


def add_to_service(host: Host) -> None:
    chain = _first(host.saved(), "-A KUBE-SVC-").split()[0]
    host.edit(f"-t nat -I {chain} -j RETURN")


def flush_all(host: Host) -> None:
    host.edit("-t nat -F")


EDITS: list[Callable[[Host], None]] = [
    flush,
    delete_endpoint_rule,
    delete_jump,
    insert_rule,
    add_to_service,
    flush_all,
]


async def repaired(host: Host, wanted: list[str], reports: int) -> None:
    """Wait until another round is over, which an edit without effect would not cause."""

    async def is_repaired() -> bool:
        return len(host.rounds.reports) > reports and sorted(host.saved()) == sorted(wanted)

    await until_async(is_repaired)


@pytest.mark.kernel
@pytest.mark.parametrize("edits", [EDITS[:3], EDITS[3:]], ids=["removing", "adding"])
async def test_every_edit_is_repaired_within_seconds(
    host: Host, edits: list[Callable[[Host], None]]
) -> None:
    """The canary alone would notice none but the flush of all, after half a minute."""
    async with host.at_work():
        for edit in edits:
            wanted, reports = host.saved(), len(host.rounds.reports)
            edit(host)
            await repaired(host, wanted, reports)
    assert any("another program edited iptables" in r.drift for r in host.rounds.reports)


@pytest.mark.kernel
@pytest.mark.parametrize("family", list(Family))
def test_an_edit_right_behind_a_write_of_ours_is_not_taken_for_ours(family: Family) -> None:
    """Also if the write did nothing that would concern us had another program done it."""
    with scratch_namespace():
        host = iptables_host(family, "nft")
        host.edit("-t nat -N KUBE-SERVICES")
        watcher = NoticeWatcher(family, SCOPE)
        with contextlib.closing(watcher):
            watcher.begin()
            host.edit("-t nat -I PREROUTING -j KUBE-SERVICES")
            watcher.end(succeeded=True)
            assert watcher.take() == ""
            watcher.begin()
            host.edit("-t nat -I OUTPUT -j KUBE-SERVICES")
            host.edit("-t nat -A KUBE-SERVICES -j RETURN")
            watcher.end(succeeded=True)
            assert watcher.take() == "nat KUBE-SERVICES"


@pytest.mark.kernel
@pytest.mark.parametrize("family", list(Family))
def test_edits_of_the_other_family_and_of_chains_not_ours_are_of_no_interest(
    family: Family,
) -> None:
    """Two families write at the same time, and programs edit their own chains all the time."""
    with scratch_namespace():
        host = iptables_host(family, "nft")
        other = iptables_host(next(each for each in Family if each is not family), "nft")
        host.edit("-t nat -N KUBE-SERVICES")
        other.edit("-t nat -N KUBE-SERVICES")
        watcher = NoticeWatcher(family, SCOPE)
        with contextlib.closing(watcher):
            watcher.begin()
            host.edit("-t nat -A KUBE-SERVICES -j RETURN")
            other.edit("-t nat -A KUBE-SERVICES -j RETURN")
            watcher.end(succeeded=True)
            host.edit("-t nat -N DOCKER")
            host.edit("-t nat -A PREROUTING -j DOCKER")
            assert watcher.take() == ""


@pytest.mark.parametrize("family", Family)
def test_who_edited_rules_is_named(family: Family) -> None:
    """Of iptables-nft the kernel says which process committed, with whatever tool it did so."""
    with scratch_namespace():
        host = iptables_host(family, "nft")
        host.edit("-t nat -N KUBE-SERVICES")
        with contextlib.closing(NoticeWatcher(family, SCOPE)) as watcher:
            table = "ip6" if family is Family.IPV6 else "ip"
            rule = ["add", "rule", table, "nat", "KUBE-SERVICES", "counter"]
            with subprocess.Popen(["nft", *rule]) as culprit:
                culprit.wait()
            assert watcher.take() == f"nat KUBE-SERVICES by nft (process {culprit.pid})"
            host.edit("-t nat -N DOCKER")
            assert watcher.take() == ""


class Table:
    """The sizes of tables as a test sets them."""

    def __init__(self) -> None:
        self.sizes = {table: TableInfo(5, 500) for table in SCOPE.tables}

    def read(self, table: str) -> TableInfo | None:
        return self.sizes.get(table)

    def close(self) -> None: ...


def test_sizes_that_change_outside_of_our_writes_are_noticed_once() -> None:
    """What a write of ours leaves is known; a refused write leaves nothing."""
    table = Table()
    watcher = SizeWatcher(table, SCOPE)
    assert watcher.take() == ""
    watcher.begin()
    table.sizes["nat"] = TableInfo(9, 900)
    assert watcher.take() == ""
    watcher.end(succeeded=True)
    assert watcher.take() == ""
    table.sizes["nat"] = TableInfo(8, 850)
    watcher.begin()
    watcher.end(succeeded=True)
    assert "nat" in watcher.take()
    assert watcher.take() == ""
    watcher.begin()
    table.sizes["filter"] = TableInfo(8, 850)
    watcher.end(succeeded=False)
    assert "filter" in watcher.take()


def test_a_program_that_still_holds_the_lock_is_named() -> None:
    """Iptables-legacy leaves no other trace of who edited a table."""
    table = Table()
    watcher = SizeWatcher(table, SCOPE, lambda: "pid 17 (iptables-restore)")
    table.sizes["nat"] = TableInfo(9, 900)
    assert watcher.take().endswith("; the iptables lock is held by pid 17 (iptables-restore)")


def test_we_are_not_named_as_holders_of_the_lock(tmp_path: Path) -> None:
    """Nor a tool of ours: the other family writes with the same lock."""
    lock = tmp_path / "lock"
    lock.touch()
    hold = f"flock {shlex.quote(str(lock))} sh -c 'echo held; read end'"
    with subprocess.Popen(
        ["sh", "-c", f"{hold}; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        assert "flock" in foreign_lock_holder(lock)
        other.communicate(b"\n", timeout=LIMIT_SECONDS)
    with lock.open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert lock_holder(lock) and not foreign_lock_holder(lock)


def test_an_edit_before_the_first_look_is_noticed() -> None:
    """What a watcher compares with is what it found when it was made."""
    table = Table()
    watcher = SizeWatcher(table, SCOPE)
    table.sizes["nat"] = TableInfo(1, 100)
    assert "nat" in watcher.take()


async def test_after_a_time_without_a_watcher_the_tables_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that has no descriptor left for it ends nothing."""
    failures = [KernelError("Too many open files")]

    def opened(*_args: object, is_nft: bool) -> SizeWatcher:
        if failures:
            raise failures.pop()
        return SizeWatcher(Table(), SCOPE)

    monkeypatch.setattr("kubeproxy.modes.netfilter.sinks.monitor.open_watcher", opened)
    backend = IptablesBackend(Family.IPV4, Options())
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    noticed = RecordedDrifts()
    monitor = EditMonitor(backend.tables, backend.netfilter, sleep=sleep)
    watching = asyncio.create_task(monitor.run(noticed))
    try:
        await until(lambda: noticed)
        assert "perhaps" in noticed[0]
    finally:
        watching.cancel()
    assert slept[:2] == [RETRY_SECONDS, POLL_SECONDS]


def test_a_program_that_never_stops_editing_does_not_keep_us_busy() -> None:
    """Three reports at once, then one in ten seconds; twenty times a slow listing at least."""
    assert reports(read_seconds=0.01)[:3] == [0.0, 1.0, 2.0]
    assert len(reports(read_seconds=0.01)) == 12
    assert reports(read_seconds=2.0) == [0.0, 40.0, 80.0]


def reports(read_seconds: float) -> list[float]:
    """When there is a report in a hundred seconds, if there is always something to report."""
    pace, found = Pace(), []
    for now in map(float, range(100)):
        if pace.allows(now, read_seconds):
            pace.spend(now)
            found.append(now)
    return found
