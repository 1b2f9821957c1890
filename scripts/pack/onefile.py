"""`make zipapp`: the program as one file for any Linux with Python 3.11 and glibc.

python -m scripts.pack.onefile [--output=build]
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import tempfile
from pathlib import Path

from scripts.pack.archive import walk, write_zip
from scripts.pack.bootstrap import ABOUT, SITE
from scripts.pack.program import MACHINES, build_program
from scripts.pack.source import PYTHON_VERSION, ROOT, read_source

_NAME = "kube-proxy.pyz"


def build_onefile(output: Path) -> Path:
    """Write the file, with extension modules for all machines, into `output`."""
    source = read_source()
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        build_program(root / SITE, source, MACHINES)
        shutil.copyfile(Path(__file__).with_name("bootstrap.py"), root / "__main__.py")
        about = {
            "digest": _digest(root / SITE),
            "python": PYTHON_VERSION,
            "machines": sorted(MACHINES.values()),
        }
        (root / ABOUT).write_text(json.dumps(about))
        content = io.BytesIO()
        write_zip(content, root, source.epoch)
    output.mkdir(parents=True, exist_ok=True)
    file = output / _NAME
    file.write_bytes(f"#!/usr/bin/env python{PYTHON_VERSION}\n".encode() + content.getvalue())
    file.chmod(0o755)
    return file


def _digest(root: Path) -> str:
    """A digest of all names and contents, by which an unpacked copy is known."""
    whole = hashlib.sha256()
    for path in walk(root):
        if path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            whole.update(f"{path.relative_to(root)} {content}\n".encode())
    return whole.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack the program into one file.")
    parser.add_argument("--output", type=Path, default=ROOT / "build")
    file = build_onefile(parser.parse_args().output)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    print(f"{file}  {file.stat().st_size / 1e6:.1f} MB  sha256:{digest}")


if __name__ == "__main__":
    main()
