"""The files of the image: the Debian packages the program runs on, the program, and links.

    python -m scripts.pack.rootfs FOLDER [--architecture=arm64] [--apt-source=FILE]

The packages are named one by one. None of their scripts runs: what these would do (certificates in
one file, links of alternatives) is done here, so no shell, perl or dpkg is needed in the image.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from scripts.pack import debian, sbom
from scripts.pack.program import build_program, compile_bytecode
from scripts.pack.source import PYTHON_VERSION, Source, read_source

PACKAGES = (
    *("libc6", "libgcc-s1", "netbase", "ca-certificates"),
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"),
    *("zlib1g", "libexpat1", "libssl3", "libffi8", "liblzma5", "libbz2-1.0", "libuuid1"),
    *("iptables", "libxtables12", "libip4tc2", "libip6tc2", "libmnl0", "libnftnl11"),
    *("libnetfilter-conntrack3", "libnfnetlink0"),
    *("kmod", "libkmod2", "libzstd1"),
)
"""In three groups: Python and its libraries, iptables in both flavours, modprobe."""

_PYTHON = f"usr/lib/python{PYTHON_VERSION}"
_UNUSED_MODULES = (
    *("test", "idlelib", "lib2to3", "pydoc_data", "turtle*", "tkinter", "ensurepip", "venv"),
    *("distutils", "unittest", "doctest.py", "pydoc.py", "pdb.py", "sqlite3", "curses", "dbm"),
    *("lib-dynload/_test*", "lib-dynload/_ctypes_test*", "lib-dynload/_xx*", "lib-dynload/xx*"),
    # Their libraries are in no package above.
    *("lib-dynload/_sqlite3*", "lib-dynload/_curses*", "lib-dynload/_dbm*", "lib-dynload/nis*"),
    *("lib-dynload/readline*", "lib-dynload/_crypt*", "lib-dynload/ossaudiodev*"),
)
_UNUSED = (
    # A licence asks to be kept with the program; of documentation nothing else is.
    *("usr/share/doc/*/[!c]*", "usr/share/doc/*/changelog*", "usr/share/man/*"),
    *("usr/share/lintian/*", "usr/share/locale/*", "usr/share/bash-completion/*"),
    *("usr/share/binfmts/*", "usr/share/python3/*", "usr/share/initramfs-tools/*"),
    *("usr/share/applications/*", "usr/share/pixmaps/*", "usr/share/gcc/*", "usr/share/gdb/*"),
    *("etc/init.d/*", "etc/cron*", "usr/lib/*/gconv/*", "usr/lib/*/libmvec.so*"),
    *("usr/sbin/update-ca-certificates", "usr/sbin/ip*-apply", "usr/sbin/nfnl_osf"),
    *("usr/sbin/arptables*", "usr/sbin/ebtables*", "usr/sbin/*-translate", "usr/bin/iptables-xml"),
    *("usr/sbin/xtables-monitor", "usr/share/iptables/*", "usr/lib/*/engines-3/*"),
    *(f"{_PYTHON}/{name}{rest}" for name in _UNUSED_MODULES for rest in ("", "/*")),
)

_FOLDERS = ("dev", "proc", "sys", "run", "tmp", "root", "etc", "usr/lib/modules", "var/lib")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
_LAUNCHER = """\
#!/usr/bin/python{version} -I
import sys

sys.path.insert(0, "/{place}")
from {module} import main

sys.exit(main())
"""
PLACE = "usr/lib/kubeproxy"
COMMANDS = {"kube-proxy": "kubeproxy.cli", "kpctl": "kpctl.cli"}


def build_rootfs(
    root: Path, source: Source, architecture: str, *, apt_source: Path | None = None
) -> list[debian.Package]:
    """Make the image's files below `root`. Return the packages they come from."""
    root.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    with tempfile.TemporaryDirectory() as work:
        packages = debian.fetch(PACKAGES, Path(work), architecture, apt_source)
        for package in packages:
            debian.unpack(package, root, is_wanted)
    _finish_packages(root)
    _add_program(root, source, architecture)
    document = sbom.document(source, packages, root / PLACE)
    (root / "usr/share/sbom").mkdir(parents=True)
    (root / "usr/share/sbom/kubeproxy.spdx.json").write_text(document)
    return packages


def is_wanted(name: str) -> bool:
    """Is a packaged file used, directly or as a licence?"""
    return not any(fnmatch(name, pattern) for pattern in _UNUSED)


def _finish_packages(root: Path) -> None:
    """Do what the packages' scripts would do."""
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    authorities = root / "usr/share/ca-certificates/mozilla"
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(b"".join(path.read_bytes() for path in sorted(authorities.glob("*.crt"))))
    shutil.rmtree(authorities.parent)
    for name, target in _iptables_links():
        (root / "usr/sbin" / name).symlink_to(target)


def _iptables_links() -> Iterator[tuple[str, str]]:
    """The plain names mean the nft flavour, Debian's default; the program chooses by full name."""
    for family in ("iptables", "ip6tables"):
        for what in ("", "-save", "-restore"):
            yield f"{family}{what}", f"{family}-nft{what}"


def _add_program(root: Path, source: Source, architecture: str) -> None:
    build_program(root / PLACE, source, [architecture])
    for folder in (PLACE, _PYTHON):
        compile_bytecode(root / folder, f"/{folder}")
    write_launchers(root / "usr/local/bin")


def write_launchers(folder: Path) -> None:
    """The commands, which find the program where it lies and use no variable of the environment."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, module in COMMANDS.items():
        text = _LAUNCHER.format(version=PYTHON_VERSION, place=PLACE, module=module)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the files of the image.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--architecture", default="amd64")
    parser.add_argument("--apt-source", type=Path)
    chosen = parser.parse_args()
    build_rootfs(chosen.root, read_source(), chosen.architecture, apt_source=chosen.apt_source)


if __name__ == "__main__":
    main()
