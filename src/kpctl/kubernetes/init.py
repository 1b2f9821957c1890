"""The first process of a machine: prepares its view of the file system, then adopts and reaps.

`python -m kpctl.kubernetes.init NAME FOLDER` runs in fresh mount, network, host name and process
namespaces. What the machine's programs write outside FOLDER lands in overlays inside it, so the
host's files stay as they are. It ends when its standard input closes, also because the owner was
killed, and the kernel then ends every process of the machine and drops its mounts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

_OVERLAID = ("etc", "opt", "usr", "var")
# Settings of the whole kernel that a kubelet would write. It finds them as it wants them.
_FOREGONE_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/default/accept_ra": "0",
    # Pods of one node reach each other through the bridge: its packets must pass the rules too.
    "net/bridge/bridge-nf-call-iptables": "1",
    "net/bridge/bridge-nf-call-ip6tables": "1",
}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    _prepare(name, folder)
    signal.signal(signal.SIGCHLD, _reap)
    sys.stdout.write("up\n")
    sys.stdout.flush()
    sys.stdin.read()


def _prepare(name: str, folder: Path) -> None:
    _run("mount", "--make-rshared", "/")
    _run("mount", "-t", "proc", "proc", "/proc")
    _let_go("/run/netns")
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for top in _OVERLAID:
        _overlay(Path("/") / top, folder / "overlay" / top)
    _bind(folder / "containerd", Path("/var/lib/containerd"))
    for path, value in _FOREGONE_SYSCTLS.items():
        _pretend(Path("/proc/sys") / path, folder / "sysctl" / path.replace("/", "."), value)
    for path, value in _SYSCTLS.items():
        (Path("/proc/sys") / path).write_text(value)
    _run("hostname", name)
    _run("ip", "link", "set", "lo", "up")


def _let_go(place: str) -> None:
    """Drop what is mounted there: the host's named networks would live on in here."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    if place in mounted:
        _run("umount", "--recursive", "--lazy", place)


def _overlay(place: Path, folder: Path) -> None:
    upper, work = folder / "upper", folder / "work"
    upper.mkdir(parents=True)
    work.mkdir()
    layers = f"lowerdir={place},upperdir={upper},workdir={work}"
    _run("mount", "-t", "overlay", "overlay", "-o", layers, str(place))


def _bind(source: Path, place: Path) -> None:
    """Let a folder appear at another place. An overlay cannot lie on an overlay."""
    source.mkdir()
    place.mkdir(parents=True, exist_ok=True)
    _run("mount", "--bind", str(source), str(place))


def _pretend(setting: Path, stand_in: Path, value: str) -> None:
    if setting.exists():
        stand_in.parent.mkdir(exist_ok=True)
        stand_in.write_text(f"{value}\n")
        _run("mount", "--bind", str(stand_in), str(setting))


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)


def _reap(*_: object) -> None:
    """Collect the processes that were left to us."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main()
