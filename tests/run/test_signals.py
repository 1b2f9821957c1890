"""Signals end the program at once, whatever it is doing, also as the first process of a container.

What would keep it takes half a minute or for ever; a third of that is the limit here.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.host import PROGRAMS, QUIET_HOST, Host, restore_signals
from tests.support.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.kernel

METRICS = 10249
SILENT = "192.0.2.0/24"
"""Addresses at which packets arrive and are dropped."""
NOWHERE = "--master=http://192.0.2.1:6443"


class Container:
    """Processes with a process, network and mount namespace of their own, as a container has."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "log"
        self._outer: list[subprocess.Popen[bytes]] = []

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def start(self, *flags: str, prepare: str = "true") -> int:
        """Start the program as PID 1 after a line of shell. Return its PID outside."""
        script = (
            f"ip link set lo up && ip route add local {SILENT} dev lo && nft add table ip hole"
            " && nft 'add chain ip hole in { type filter hook input priority 0; policy drop; }'"
            f' && {prepare} && exec "$@"'
        )
        spaces = ("--pid", "--fork", "--mount-proc", "--net", "--mount", "--kill-child")
        with self._log.open("ab") as log:
            outer = subprocess.Popen(
                ["unshare", *spaces, "sh", "-c", script, "sh", PROGRAMS / "kube-proxy", *flags],
                stdout=log,
                stderr=log,
                preexec_fn=restore_signals,
            )
        self._outer.append(outer)
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        until(lambda: children.read_text().strip(), self)
        inner = int(children.read_text())
        until(lambda: command_line(inner)[:2] not in (b"", b"sh", b"un"), self)
        return inner

    def wait(self) -> int:
        """Return the exit code of what was started last."""
        return self._outer[-1].wait(LIMIT_SECONDS)

    def close(self) -> None:
        for outer in self._outer:
            outer.kill()
            outer.wait()


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_connecting(pid: int) -> bool:
    """Has this process begun a connection to the API server that is not there?"""
    return f":{6443:04X}" in Path(f"/proc/{pid}/net/tcp").read_text()


def until(condition: Callable[[], object], where: Container | Host) -> None:
    wait_until(condition, lambda: where.log[-3000:])


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    if os.geteuid() != 0:
        pytest.skip("making namespaces needs root")
    made = Container(tmp_path)
    yield made
    made.close()


def end(container: Container, pid: int, number: int = signal.SIGTERM) -> int:
    """Send a signal. Return the exit code; what would hold the process lasts beyond the limit."""
    os.kill(pid, number)
    code = container.wait()
    assert "Traceback" not in container.log
    return code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_process_ends_while_it_waits_for_an_api_server(
    container: Container, number: int
) -> None:
    """Without a handler the kernel ignores these signals for it."""
    pid = container.start(NOWHERE, "--proxy-mode=nftables", *QUIET_HOST)
    until(lambda: is_connecting(pid), container)
    assert end(container, pid, number) == 0
    assert "Stopped; the rules stay in the kernel" in container.log


def test_a_hanging_name_look_up_does_not_hold_the_process(
    container: Container, tmp_path: Path
) -> None:
    """The look-up runs in a thread that nothing can interrupt."""
    names = tmp_path / "resolv.conf"
    servers = "".join(f"nameserver 192.0.2.{number}\n" for number in (53, 54, 55))
    names.write_text(f"{servers}options timeout:30 attempts:5\n")
    pid = container.start(
        "--master=http://api.example:6443",
        "--proxy-mode=nftables",
        *QUIET_HOST,
        prepare=f"mount --bind {names} /etc/resolv.conf",
    )
    until(lambda: len(list(Path(f"/proc/{pid}/task").iterdir())) > 1, container)
    assert end(container, pid) == 0


def test_initializing_that_is_interrupted_has_failed(container: Container) -> None:
    """What waits for it must not go on as if the host were prepared."""
    pid = container.start(NOWHERE, "--proxy-mode=nftables", *QUIET_HOST, "--init-only")
    until(lambda: is_connecting(pid), container)
    assert end(container, pid) == 1
    assert "the system is not initialized" in container.log


def test_clean_up_that_is_interrupted_has_failed(container: Container, tmp_path: Path) -> None:
    """Also while a tool runs that does not end."""
    started = tmp_path / "started"
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("iptables", "iptables-save", "ip6tables", "ip6tables-save"):
        tool = tools / name
        tool.write_text(f"#!/bin/sh\ntouch {started}\nsleep 600\n")
        tool.chmod(0o755)
    pid = container.start("--cleanup", prepare=f"PATH={tools}:$PATH")
    until(started.exists, container)
    assert end(container, pid) == 1
    assert "clean-up may be incomplete" in container.log


def test_a_signal_at_the_very_beginning_is_not_lost(container: Container) -> None:
    """From the moment on at which the interpreter has started."""
    for delay in (0.05, 0.1, 0.15, 0.2):
        pid = container.start(NOWHERE, *QUIET_HOST)
        time.sleep(delay)
        until(partial(_catches_sigterm, pid), container)
        assert end(container, pid) == 0


def _catches_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_running_profile_does_not_hold_the_process(host: Host) -> None:
    process = host.start("--proxy-mode=nftables", "--profiling")
    until(lambda: host.get(METRICS, "/healthz")[0] == 200, host)
    profile = threading.Thread(
        target=host.get, args=(METRICS, "/debug/pprof/profile?seconds=600"), daemon=True
    )
    profile.start()
    until(lambda: "sample" in host.get(METRICS, "/debug/pprof/goroutine?debug=2")[1], host)
    assert host.stop(process) == 0
    profile.join()
    assert "Traceback" not in host.log


def test_a_log_that_is_not_read_does_not_hold_the_process(host: Host) -> None:
    """Writing to a full pipe blocks; a signal ends it all the same."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    process = host.start("--proxy-mode=nftables", "--profiling", stderr=writing)
    until(lambda: host.get(METRICS, "/healthz")[0] == 200, host)
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, bytes(100))
    os.set_blocking(writing, True)
    assert host.stop(process) == 0
    os.close(reading)
    os.close(writing)


def test_a_second_signal_ends_what_the_first_did_not(host: Host) -> None:
    process = host.start("--proxy-mode=nftables")
    until(lambda: host.get(METRICS, "/healthz")[0] == 200, host)
    for _ in range(20):
        process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_SECONDS) == 0
    assert "Traceback" not in host.log


def test_a_long_search_for_a_successor_is_not_cut_short() -> None:
    """What ends a process that is blocked must not end one that is about to stay."""
    script = """
import asyncio, os, signal, time
from kubeproxy.run.process import GRACE_SECONDS, Signals

def stays():
    time.sleep(2 * GRACE_SECONDS)
    loop.call_later(2 * GRACE_SECONDS, loop.stop)
    return True

loop, signals = asyncio.new_event_loop(), Signals()
signals.use(loop, code=1, last_words=lambda: None)
signals.stays = stays
signals.install()
loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)
loop.run_forever()
print("ended by itself")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert (done.returncode, done.stdout) == (0, "ended by itself\n"), done.stderr


def test_what_the_process_was_started_to_ignore_stays_ignored(host: Host) -> None:
    """As with nohup."""
    process = host.start(
        "--proxy-mode=nftables", before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    until(lambda: host.get(METRICS, "/healthz")[0] == 200, host)
    process.send_signal(signal.SIGHUP)
    assert host.get(METRICS, "/healthz")[0] == 200
    assert host.stop(process) == 0


@pytest.mark.parametrize("closed", [(2,), (1, 2), (0, 1, 2)])
def test_closed_standard_streams_do_no_harm(host: Host, closed: tuple[int, ...]) -> None:
    """Their numbers belong to /dev/null then, and never to a socket."""

    def close_them() -> None:
        for number in closed:
            os.close(number)

    process = host.start("--proxy-mode=nftables", before=close_them)
    until(lambda: host.get(METRICS, "/healthz")[0] == 200, host)
    for number in closed:
        assert str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) == os.devnull
    assert host.stop(process) == 0


def test_a_log_whose_reader_is_gone_does_no_harm(host: Host) -> None:
    reading, writing = os.pipe()
    process = host.start("--proxy-mode=nftables", "-v=5", stderr=writing)
    os.close(writing)
    until(lambda: host.get(METRICS, "/healthz")[0] == 200, host)
    os.close(reading)
    (host.manifests / "bad.yaml").write_text("{kind: Service, metadata: {name: bad}}\n")
    until(
        lambda: "rejected_objects_total{" in host.get(METRICS, "/metrics")[1],
        host,
    )
    assert host.stop(process) == 0


@pytest.mark.parametrize("target", ["| true", "> /dev/full", ">&-"])
def test_printing_where_nothing_is_read_is_no_traceback(target: str) -> None:
    for flag in ("--help", "--version"):
        done = subprocess.run(
            ["bash", "-c", f"{PROGRAMS}/kube-proxy {flag} {target}; exit ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_signals_that_mean_nothing_do_nothing(host: Host) -> None:
    """A Go program ignores them; the default of the system is to end the process."""
    process = host.start("--proxy-mode=nftables")
    until(lambda: host.get(METRICS, "/healthz")[0] == 200, host)
    harmless = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGIO, signal.SIGPWR)
    for number in (*harmless, signal.SIGWINCH, signal.SIGPIPE, signal.SIGRTMIN, signal.SIGRTMAX):
        for _ in range(50):
            process.send_signal(number)
    assert host.get(METRICS, "/healthz")[0] == 200
    assert process.poll() is None
    assert host.stop(process) == 0
    assert "Traceback" not in host.log


@pytest.mark.parametrize("flags", [(), ("-v=9",), ("--logging-format=json",)])
def test_a_full_disk_of_the_log_does_no_harm(host: Host, flags: tuple[str, ...]) -> None:
    """From the start on, also for notices from before the log is set up."""
    full = os.open("/dev/full", os.O_WRONLY)
    process = host.start("--proxy-mode=nftables", *flags, stderr=full)
    os.close(full)
    until(lambda: host.get(METRICS, "/healthz")[0] == 200 or process.poll() is not None, host)
    assert process.poll() is None
    assert host.stop(process) == 0
