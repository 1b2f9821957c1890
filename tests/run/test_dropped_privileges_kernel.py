"""The daemon with what it keeps of root's powers: read from the kernel, and used later.

Every test that runs the daemon runs it like this, above all the corpus of flows. Here is what
those do not show: the sets of every thread, and things that happen long after the start.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.host import Host
from tests.support.served import BALANCED, WEB, until_programmed, until_serving, write

from kubeproxy.kernel.capabilities import capability_mask
from kubeproxy.run.confinement import belongs_to_others, kept_capabilities

pytestmark = pytest.mark.kernel

MODES = ("nftables", "iptables", "userspace")
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
OTHER_USER = 65534


def states(pid: int) -> Iterator[dict[str, int]]:
    """The privileges of each thread of a process."""
    for place in Path(f"/proc/{pid}/task").iterdir():
        rows = dict(re.findall(r"^(\w+):\s+(\S+)", (place / "status").read_text(), re.MULTILINE))
        yield {name: int(rows[name], 16) for name in SETS}


def confined_to(*names: str) -> dict[str, int]:
    mask = capability_mask(names)
    held = dict.fromkeys(("CapPrm", "CapEff", "CapBnd"), mask)
    return {"CapInh": 0, "CapAmb": 0, **held, "NoNewPrivs": 1, "Seccomp": 2}


def carriers_of(pid: int) -> set[int]:
    """The carrier processes; tools of iptables come and go beside them."""
    found = set()
    for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"userspace.carrier" in Path(f"/proc/{word}/cmdline").read_bytes():
                found.add(int(word))
    return found


def keeps_nothing(pid: int) -> bool:
    """Has it no capability, and can it get none? Without new privileges, the bounding set, which a
    process without capabilities cannot reduce, gives it none."""
    return all({**state, "CapBnd": 0} == confined_to() for state in states(pid))


@pytest.mark.parametrize("mode", MODES)
def test_every_thread_keeps_what_the_mode_needs_and_no_more(host: Host, mode: str) -> None:
    """With a buffer for the log there is a thread from the first moment on."""
    write(host, "web.yaml", WEB)
    buffered = ("--feature-gates=LoggingAlphaOptions=true", "--log-text-split-stream=true")
    process = host.start(f"--proxy-mode={mode}", *buffered, "--log-text-info-buffer-size=1Ki")
    host.until(lambda: host.get(10256, "/healthz")[0] == 200, "health")
    expected = confined_to(*kept_capabilities(mode, has_files_of_others=False))
    found = list(states(process.pid))
    assert len(found) > 1, "no thread but the main one: nothing is shown about threads"
    assert found == [expected] * len(found)


def test_the_carrier_keeps_nothing(host: Host) -> None:
    write(host, "web.yaml", WEB)
    process = host.start("--proxy-mode=userspace")
    until_serving(host)

    def are_confined() -> bool:
        """A carrier begins by that, but may begin after the first sync."""
        carriers = carriers_of(process.pid)
        return bool(carriers) and all(map(keeps_nothing, carriers))

    host.until(are_confined, "carriers that keep nothing")


def test_a_new_carrier_is_started_and_keeps_nothing(host: Host) -> None:
    write(host, "web.yaml", WEB)
    process = host.start("--proxy-mode=userspace")
    until_serving(host)
    before = carriers_of(process.pid)
    for carrier in before:
        os.kill(carrier, signal.SIGKILL)

    def are_replaced() -> bool:
        now = carriers_of(process.pid) - before
        return len(now) == len(before) and all(map(keeps_nothing, now))

    host.until(are_replaced, "new carriers")


def test_all_privileges_are_kept_on_request(host: Host) -> None:
    write(host, "web.yaml", WEB)
    process = host.start("--proxy-mode=nftables", "--keep-privileges")
    until_serving(host)
    own = next(states(os.getpid()))
    assert all(state == own for state in states(process.pid))
    assert '"Dropped privileges"' not in host.log


@pytest.mark.parametrize("mode", MODES)
def test_a_health_check_may_have_a_port_below_1024(host: Host, mode: str) -> None:
    """It comes with a Service long after the privileges are gone."""
    write(host, "web.yaml", WEB)
    host.start(f"--proxy-mode={mode}")
    until_serving(host)
    write(host, "lb.yaml", BALANCED.replace("32123", "323"))
    host.until(lambda: host.get(323, "/")[0] == 200, "an answer of the health check")


def test_node_ports_on_loopback_may_be_below_1024(host: Host) -> None:
    write(host, "web.yaml", WEB)
    host.start("--proxy-mode=nftables", "--nftables-localhost-nodeports")
    until_serving(host)
    write(host, "lb.yaml", BALANCED.replace("30080", "380"))

    def is_listening() -> bool:
        with host.network.inside(), socket.socket() as client:
            return client.connect_ex(("127.0.0.1", 380)) == 0

    host.until(is_listening, "a listener on port 380 of loopback")


@pytest.mark.parametrize("mode", MODES)
def test_rules_that_another_program_removed_come_back(host: Host, mode: str) -> None:
    """The tools still run, and what they need of privileges is there."""
    write(host, "web.yaml", WEB)
    host.start(f"--proxy-mode={mode}", "--iptables-sync-period=1s")
    until_serving(host)
    until_programmed(host, "10.96.0.10")
    assert host.run("nft", "flush", "ruleset").returncode == 0
    until_programmed(host, "10.96.0.10")


def test_manifests_of_another_user_are_followed(host: Host) -> None:
    """Root reads them by a capability, which is kept if there are such files, and only then."""
    write(host, "web.yaml", WEB)
    os.chown(host.manifests, OTHER_USER, OTHER_USER)
    host.manifests.chmod(0o700)
    process = host.start("--proxy-mode=nftables")
    until_programmed(host, "10.96.0.10")
    kept = kept_capabilities("nftables", has_files_of_others=True)
    assert next(states(process.pid)) == confined_to(*kept)
    write(host, "web.yaml", WEB.replace("10.96.0.10", "10.96.0.11"))
    (host.manifests / "web.yaml").chmod(0o600)
    os.chown(host.manifests / "web.yaml", OTHER_USER, OTHER_USER)
    until_programmed(host, "10.96.0.11")


def test_a_profile_is_taken(host: Host) -> None:
    write(host, "web.yaml", WEB)
    host.start("--proxy-mode=nftables", "--profiling")
    until_serving(host)
    with host.network.inside(), socket.create_connection(("127.0.0.1", 10249)) as client:
        client.sendall(b"GET /debug/pprof/profile?seconds=1 HTTP/1.0\r\n\r\n")
        assert client.recv(64).startswith(b"HTTP/1.0 200")


def test_files_of_others_are_recognised(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "file").write_text("x")
    os.chown(other, OTHER_USER, OTHER_USER)
    (own / "link").symlink_to(other / "file")
    assert not belongs_to_others(str(own / "file"))
    assert belongs_to_others(str(other / "file"))
    assert belongs_to_others(str(own / "link"))
    assert not belongs_to_others(str(own / "missing"))
    os.chown(own / "file", OTHER_USER, OTHER_USER)
    assert belongs_to_others(str(own)), "a folder counts with its content"
