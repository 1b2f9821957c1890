"""`make dist`: the wheel and the source distribution, the same bytes from the same commit.

python -m scripts.pack.distributions [--output=dist]
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from scripts.pack.archive import compress, settle, write_tar
from scripts.pack.source import ROOT, copy_project, read_source

_BUILD = "from setuptools import build_meta as b; b.build_sdist('out'); b.build_wheel('out')"


def build_distributions(output: Path, root: Path = ROOT) -> list[Path]:
    """Build both from a copy of the project's files, so that nothing else of the folder gets in."""
    epoch = read_source().epoch
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "project"
        copy_project(work, root)
        settle(work, epoch)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
        subprocess.run(
            [sys.executable, "-c", _BUILD],
            check=True,
            cwd=work,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        (sdist,) = (work / "out").glob("*.tar.gz")
        (wheel,) = (work / "out").glob("*.whl")
        _repack(sdist, epoch)
        return [Path(shutil.copy(file, output)) for file in (sdist, wheel)]


def _repack(sdist: Path, epoch: int) -> None:
    """Write the sdist again without the owner and the times that setuptools puts in."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as tar:
            tar.extractall(folder, filter="data")
        plain = io.BytesIO()
        write_tar(plain, Path(folder), epoch)
        sdist.write_bytes(compress(plain.getvalue()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the wheel and the source distribution.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    for file in build_distributions(parser.parse_args().output):
        print(f"{file}  sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
