"""The daemon in a container made by runc: read-only files, few capabilities, a seccomp filter.

The container has the files of this machine, read-only, and the network namespace of the caller.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support import LOCK_VARIABLE
from tests.support.confined import Confine
from tests.support.go_tools import runtime_default

Spec = dict[str, object]
Profile = Callable[[Spec], Mapping[str, object]]
_LOCK = "/run/xtables.lock"
# As container runtimes do it for containers that are not privileged.
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
_MASKED = ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"]
_IN_MOUNT_NAMESPACE = 'mount --bind / "$1" && shift && exec "$@"'


def in_container(
    folder: Path, capabilities: Sequence[str], profile: Profile, env: Mapping[str, str]
) -> Confine:
    """Return what makes a command line run in a container."""
    root, state, lock = folder / "root", folder / "state", folder / "xtables.lock"
    root.mkdir(parents=True)
    lock.touch()

    def confine(argv: Sequence[str]) -> Sequence[str]:
        spec = _spec(argv, [f"CAP_{name}" for name in capabilities], lock, env)
        spec["linux"] = {**_linux(), "seccomp": profile(spec)}
        (folder / "config.json").write_text(json.dumps(spec))
        runc = ("runc", "--root", str(state), "run", "--bundle", str(folder), f"t{os.getpid()}")
        shell = ("sh", "-c", _IN_MOUNT_NAMESPACE, "sh", str(root))
        return ["unshare", "--mount", *shell, *runc]

    return confine


def _spec(argv: Sequence[str], capabilities: list[str], lock: Path, env: Mapping[str, str]) -> Spec:
    held = dict.fromkeys(("bounding", "effective", "permitted"), capabilities)
    return {
        "ociVersion": "1.0.2",
        "root": {"path": "root", "readonly": True},
        "process": {
            "args": list(argv),
            "cwd": str(Path.cwd()),
            "env": [f"{k}={v}" for k, v in {**os.environ, **env}.items() if k != LOCK_VARIABLE],
            "user": {"uid": 0, "gid": 0},
            "capabilities": held,
            "noNewPrivileges": True,
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            _mount("/sys", "sysfs", ["nosuid", "noexec", "nodev", "ro"]),
            _mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755"]),
            {"destination": _LOCK, "source": str(lock), "type": "bind", "options": ["bind"]},
        ],
    }


def _mount(place: str, kind: str, options: list[str]) -> dict[str, object]:
    return {"destination": place, "type": kind, "source": kind, "options": options}


def _linux() -> dict[str, object]:
    return {
        # No network namespace: that of the caller is used.
        "namespaces": [{"type": kind} for kind in ("mount", "pid", "ipc")],
        "readonlyPaths": _READ_ONLY,
        "maskedPaths": _MASKED,
    }


def runtime_default_profile(spec: Spec) -> Mapping[str, object]:
    """What containerd means by RuntimeDefault, which depends on the capabilities."""
    filled = {**spec, "linux": _linux()}
    done = subprocess.run(
        [str(runtime_default())], input=json.dumps(filled).encode(), capture_output=True, check=True
    )
    found: Mapping[str, object] = json.loads(done.stdout)
    return found


def systemd_profile(unit: Path) -> Profile:
    """The system calls that a unit allows, as systemd expands its groups."""
    lines = re.findall(r"^SystemCallFilter=(.+)$", unit.read_text(), re.MULTILINE)
    allowed: set[str] = set()
    for line in lines:
        groups = line.removeprefix("~").split()
        calls = {call for group in groups for call in _calls(group)}
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    rule = {"names": sorted(allowed), "action": "SCMP_ACT_ALLOW"}
    profile = {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "syscalls": [rule]}
    return lambda _: profile


def _calls(group: str) -> set[str]:
    done = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True
    )
    words = [line.strip() for line in done.stdout.splitlines() if line.startswith(" ")]
    calls = {word for word in words if not word.startswith(("#", "@"))}
    return calls.union(*(_calls(word) for word in words if word.startswith("@")))
