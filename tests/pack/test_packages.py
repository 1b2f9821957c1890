"""scripts/packages.sh: each purpose asks for what it uses and for nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scripts.pack.source import ROOT


def missing_for(purpose: str, folder: Path) -> set[str]:
    """The packages it names where no program is installed, to a user who cannot install any."""
    user = folder / "id"
    user.write_text("#!/bin/sh\necho 1000\n")
    user.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", ROOT / "scripts/packages.sh", purpose],
        env={"PATH": str(folder), "PYTHON": "absent"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "are missing:" in line)
    return set(line.partition(":")[2].split())


def test_the_demo_needs_four_packages_and_virtual_environments(tmp_path: Path) -> None:
    demo = missing_for("demo", tmp_path)
    assert demo == {"iproute2", "nftables", "iptables", "kmod", "python3-venv"}
    assert demo < missing_for("test", tmp_path)


def test_the_browser_is_asked_for_on_its_own(tmp_path: Path) -> None:
    assert missing_for("browser", tmp_path) == {"chromium", "chromium-driver", "python3-venv"}


def test_a_purpose_must_be_named(tmp_path: Path) -> None:
    done = subprocess.run(["/bin/sh", ROOT / "scripts/packages.sh"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "demo|test" in done.stderr
