"""Tools that are slow, hang, or outlive the proxy that started them; a lock held by another."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.engine_kit import RecordedRounds
from tests.support.host import Host
from tests.support.served import WEB, write
from tests.support.waiting import limit, until

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.exec import run_tool
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine, EngineTimes

pytestmark = pytest.mark.kernel

HEALTH, METRICS = 10256, 10249

WRAPPER = """#!/bin/sh
gate="$GATE"
[ -n "$AFTERWARDS" ] && {{ {real} "$@"; status=$?; }}
if [ -e "$gate/closed" ] && [ "$1" != --version ]; then
    touch "$gate/waiting"
    while [ -e "$gate/closed" ]; do sleep 0.05; done
    late=yes
fi
[ -n "$AFTERWARDS" ] || {{ {real} "$@"; status=$?; }}
[ -n "$late" ] && touch "$gate/done"
exit $status
"""
"""A tool that does not go on, before or after its work, while a gate is closed."""


class Gate:
    """Closed, it holds up every restore that begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    @contextmanager
    def closed(self) -> Iterator[None]:
        closed = self._folder / "closed"
        closed.touch()
        try:
            yield
        finally:
            closed.unlink()

    @property
    def is_waiting(self) -> bool:
        return (self._folder / "waiting").exists()

    @property
    def is_done(self) -> bool:
        return (self._folder / "done").exists()


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate for the tools of everything that is started from here on."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for variant in ("nft", "legacy"):
        tool = tools / f"iptables-{variant}-restore"
        tool.write_text(WRAPPER.format(real=_where(tool.name)))
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    return Gate(tmp_path / "gate")


def _where(tool: str) -> str:
    return subprocess.run(
        ["which", tool], check=True, capture_output=True, text=True
    ).stdout.strip()


def start(host: Host, variant: str = "nft", *flags: str) -> subprocess.Popen[bytes]:
    return host.start(
        "--proxy-mode=iptables",
        f"--iptables-variant={variant}",
        "--iptables-sync-period=2s",
        *flags,
    )


def until_rules(host: Host, variant: str, *, there: str = "", gone: str = "") -> None:
    def is_so() -> bool:
        rules = host.run(f"iptables-{variant}-save").stdout
        return there in rules and (not gone or gone not in rules)

    host.until(is_so, f"rules with {there!r} and without {gone!r}")


def is_answering(host: Host) -> bool:
    """Health is bad once a sync is overdue, as upstream's, but there is an answer."""
    return host.get(HEALTH, "/livez")[0] in (200, 503) and host.get(METRICS, "/metrics")[0] == 200


def moved(address: str) -> str:
    return WEB.replace("10.96.0.10", address)


def test_a_slow_tool_holds_up_the_rules_and_nothing_else(host: Host, gate: Gate) -> None:
    """What changes meanwhile is programmed afterwards."""
    write(host, "web.yaml", WEB)
    start(host)
    until_rules(host, "nft", there="10.96.0.10/32")
    with gate.closed():
        write(host, "web.yaml", moved("10.96.0.11"))
        host.until(lambda: gate.is_waiting, "a restore")
        write(host, "web.yaml", moved("10.96.0.12"))
        assert is_answering(host)
        asked = host.run("kpctl", "status", "--socket", host.socket)
        assert "iptables" in asked.stdout
    until_rules(host, "nft", there="10.96.0.12/32", gone="10.96.0.11/32")


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_a_restore_that_outlives_its_killed_proxy_is_undone(
    host: Host, gate: Gate, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes what was wanted long ago over the rules of the successor, who notices."""
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "lock"))
    write(host, "web.yaml", WEB)
    first = start(host, variant)
    until_rules(host, variant, there="10.96.0.10/32")
    with gate.closed():
        write(host, "web.yaml", moved("10.96.0.11"))
        host.until(lambda: gate.is_waiting, "a restore")
        first.send_signal(signal.SIGKILL)
        first.wait()
        write(host, "web.yaml", moved("10.96.0.12"))
        monkeypatch.setenv("GATE", str(tmp_path / "open"))
        start(host, variant)
        until_rules(host, variant, there="10.96.0.12/32", gone="10.96.0.10/32")
    host.until(lambda: gate.is_done, "the end of the old restore")
    until_rules(host, variant, there="10.96.0.12/32", gone="10.96.0.11/32")


def test_a_lock_held_for_long_is_waited_for_again_and_again(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy goes on otherwise, and programs everything once the lock is free."""
    lock = tmp_path / "lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    write(host, "web.yaml", WEB)
    start(host, "legacy", "--xtables-lock-timeout=1s")
    until_rules(host, "legacy", there="10.96.0.10/32")
    with lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        write(host, "web.yaml", moved("10.96.0.11"))
        host.until(lambda: host.log.count("xtables lock") >= 3, "three attempts")
        assert "held by pid" in host.log
        assert is_answering(host)
    until_rules(host, "legacy", there="10.96.0.11/32", gone="10.96.0.10/32")


def test_a_lock_held_at_the_start_is_waited_for_and_leaves_no_family_out(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    write(host, "web.yaml", WEB)
    with lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        process = start(host, "legacy", "--xtables-lock-timeout=1s")
        host.until(lambda: "xtables lock" in host.log, "an attempt")
    until_rules(host, "legacy", there="10.96.0.10/32")
    assert process.poll() is None
    assert "kube-proxy running in dual-stack mode" in host.log


async def test_tables_whose_lock_is_held_are_not_taken_for_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up would leave them alone without a word."""
    lock = tmp_path / "lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    options = ToolOptions(variant="legacy", lock_timeout_seconds=1)
    with scratch_namespace(), lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert await Xtables(Family.IPV4, options).is_present()


async def test_a_tool_that_hangs_is_killed_and_what_it_did_is_read(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs after it has changed the rules, which is the worst it can do."""
    monkeypatch.setenv("AFTERWARDS", "yes")
    defaults = run_tool.__kwdefaults__
    assert defaults is not None
    listener = RecordedRounds()
    with scratch_namespace():
        backend = IptablesBackend(Family.IPV4, Options(tools=ToolOptions(variant="nft")))
        engine = Engine(
            backend,
            node(),
            clock=SystemClock(),
            listener=listener,
            times=EngineTimes(min_seconds=0.01, retry_seconds=0.1),
        )
        await backend.start(node())
        engine.pipeline.store.set_service(service())
        engine.pipeline.store.set_slice(endpoint_slice(endpoints=[endpoint()]))
        async with limit(), asyncio.TaskGroup() as group:
            loop = group.create_task(engine.run())
            # Only what hangs: a busy machine may need as long for a tool that does not.
            with gate.closed(), monkeypatch.context() as patch:
                patch.setitem(defaults, "timeout_seconds", 2.0)
                engine.mark_synced()
                await until(lambda: any("was killed" in r.error for r in listener.reports))
            await until(lambda: listener.reports[-1].is_success)
            loop.cancel()
        rules = subprocess.run(["iptables-nft-save"], check=True, capture_output=True, text=True)
        assert rules.stdout.count("-A KUBE-SERVICES -d 10.96.0.10/32") == 1
        await backend.close()
