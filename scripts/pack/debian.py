"""Debian packages, fetched and unpacked without installing anything and without root.

apt runs on a state of its own, so the machine's package lists stay as they are. Where packages come
from is the machine's own apt configuration, or a sources file.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

_MERGED = ("bin", "sbin", "lib", "lib64")
"""Folders that are links into /usr."""


class Package(NamedTuple):
    """One fetched package."""

    name: str
    version: str
    architecture: str
    source: str
    file: Path


def fetch(
    names: Iterable[str], work: Path, architecture: str, sources: Path | None = None
) -> list[Package]:
    """Download these packages, and no others, into `work`. apt checks their signatures."""
    debs = work / "debs"
    for folder in ("lists/partial", "archives/partial", "debs"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    apt = ["apt-get", "-qq", *_options(work, architecture, sources)]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *sorted(names)], check=True, cwd=debs)
    return [_describe(file) for file in sorted(debs.glob("*.deb"))]


def _options(work: Path, architecture: str, sources: Path | None) -> list[str]:
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",  # the work folder need not be readable for apt's own user
        "Acquire::Languages": "none",
        "Dir::State::status": work / "status",
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work,
        "Dir::Cache::archives": work / "archives",
    }
    if sources is not None:
        settings |= {"Dir::Etc::sourcelist": sources.resolve(), "Dir::Etc::sourceparts": "-"}
    return [f"-o{name}={value}" for name, value in settings.items()]


def _describe(file: Path) -> Package:
    fields = ("Package", "Version", "Architecture", "Source")
    shown = subprocess.run(
        ["dpkg-deb", "--show", "--showformat=" + "\n".join(f"${{{f}}}" for f in fields), file],
        check=True,
        capture_output=True,
        text=True,
    )
    name, version, architecture, source = shown.stdout.split("\n")
    return Package(name, version, architecture, source.split(" ")[0] or name, file)


def unpack(package: Package, root: Path, is_wanted: Callable[[str], bool]) -> None:
    """Unpack the wanted files of a package below `root`, with /bin, /sbin and /lib in /usr."""
    command: list[str | Path] = ["dpkg-deb", "--fsys-tarfile", package.file]
    content = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in tar:
            member.name = _merged(member.name.removeprefix("./"))
            if member.islnk():
                member.linkname = _merged(member.linkname.removeprefix("./"))
            if not member.isdir() and is_wanted(member.name):
                tar.extract(member, root, set_attrs=False)
                if member.isreg():
                    (root / member.name).chmod(member.mode & 0o755)


def _merged(name: str) -> str:
    return f"usr/{name}" if name.partition("/")[0] in _MERGED else name
