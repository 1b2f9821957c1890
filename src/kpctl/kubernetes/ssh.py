"""Logins on the nodes, for upstream's tests that remove rules there.

A small server (dropbear) on each node lets one key in, as a user with the rights of root. It exists
inside the machine only, like the `sudo` that those tests call.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from kpctl.kubernetes.machine import Machine

USER = "lab"
_HOME = f"/run/{USER}"
_PREPARE = f"""
mkdir -p {_HOME}/.ssh /etc/dropbear
chmod 700 {_HOME} {_HOME}/.ssh
echo '{USER}:x:0:0::{_HOME}:/bin/sh' >> /etc/passwd
echo "$0" > {_HOME}/.ssh/authorized_keys
chmod 600 {_HOME}/.ssh/authorized_keys
printf '#!/bin/sh\\nexec "$@"\\n' > /usr/bin/sudo
chmod 755 /usr/bin/sudo
"""


def make_key(folder: Path) -> tuple[Path, str]:
    """Make a key. Return the file of its private part, and its public part."""
    raw, private = folder / "key", folder / "id_rsa"
    _run("dropbearkey", "-t", "rsa", "-f", str(raw))
    _run("dropbearconvert", "dropbear", "openssh", str(raw), str(private))
    shown = _run("dropbearkey", "-y", "-f", str(raw))
    return private, next(line for line in shown.splitlines() if line.startswith("ssh-rsa "))


def allow_logins(machine: Machine, public_key: str) -> None:
    """Start the server on a machine."""
    machine.run("sh", "-c", _PREPARE, public_key)
    machine.start("ssh", ["dropbear", "-F", "-E", "-R", "-s"])


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
