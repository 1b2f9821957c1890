"""The same commit gives the same bytes: distributions, archives, bytecode, and the whole image."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from scripts.pack import archive
from scripts.pack.distributions import build_distributions
from scripts.pack.image import build_image
from scripts.pack.oci import Image, write_layout
from scripts.pack.program import compile_bytecode
from scripts.pack.source import ROOT, copy_project, project_files

EPOCH = 1_700_000_000


def make_tree(root: Path, umask: int) -> Path:
    """Some files, made in another order and with other permissions each time."""
    before = os.umask(umask)
    try:
        for name in sorted(("b/deep/x.py", "a.py", "b/y.py"), reverse=bool(umask)):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("VALUES = frozenset({'a', 'b', 'c'})\n")
        (root / "link").symlink_to("a.py")
    finally:
        os.umask(before)
    return root


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archives_depend_on_names_and_contents_only(tmp_path: Path, kind: str) -> None:
    written = []
    for umask in (0o077, 0):
        root, out = make_tree(tmp_path / str(umask), umask), io.BytesIO()
        write = archive.write_tar if kind == "tar" else archive.write_zip
        write(out, root, EPOCH)
        written.append(archive.compress(out.getvalue()))
    assert written[0] == written[1]


def test_bytecode_and_layout_have_the_same_digest_each_time(tmp_path: Path) -> None:
    image = Image("it:1", "amd64", {"label": "x"}, ("/it",), EPOCH)
    digests = set()
    for umask in (0o077, 0):
        root = make_tree(tmp_path / str(umask), umask)
        compile_bytecode(root, "/usr/lib/it")
        digests.add(write_layout(tmp_path / f"layout{umask}", root, image).digest)
    assert len(digests) == 1


@pytest.mark.image
@pytest.mark.timeout(1800)
def test_the_image_built_twice_has_one_digest(image: Path, tmp_path: Path) -> None:
    again = build_image(tmp_path, "amd64")
    (digest,) = image.glob("*.digest")
    assert digest.read_text().strip() == again.digest


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project that stays as it is while the original is edited."""
    target = tmp_path_factory.mktemp("project")
    copy_project(target)
    return target


@pytest.fixture(scope="module")
def distributions(project: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build_distributions(tmp_path_factory.mktemp("dist"), project)


@pytest.mark.timeout(600)
@pytest.mark.image
def test_wheel_and_sdist_built_twice_are_the_same(
    distributions: list[Path], project: Path, tmp_path: Path
) -> None:
    again = build_distributions(tmp_path, project)
    for one, other in zip(distributions, again, strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes(), one.name


def test_the_sdist_has_every_file_of_the_project(distributions: list[Path], project: Path) -> None:
    with tarfile.open(distributions[0]) as tar:
        names = {m.name.partition("/")[2] for m in tar if m.isreg()}
    made = {name for name in names if ".egg-info/" in name or name in ("PKG-INFO", "setup.cfg")}
    assert names - made == {str(path) for path in project_files(project)}


@pytest.mark.image
@pytest.mark.timeout(600)
def test_the_sdist_builds_and_tests_itself(distributions: list[Path], tmp_path: Path) -> None:
    """Some tests run from it, and a wheel is built from it."""
    with tarfile.open(distributions[0]) as tar:
        tar.extractall(tmp_path, filter="data")
    (project,) = tmp_path.iterdir()
    environment = {**os.environ, "PYTHONPATH": str(project / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/plan"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    build = "from setuptools import build_meta as b; b.build_wheel('out')"
    subprocess.run([sys.executable, "-c", build], cwd=project, check=True, capture_output=True)
    assert len(list((project / "out").glob("*.whl"))) == 1


def test_the_metadata_is_complete(distributions: list[Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        fields = HeaderParser().parsestr(wheel.read(name).decode())
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["License-File"] == "LICENSE"
    assert fields["Requires-Python"] == ">=3.11"
    assert fields["Description-Content-Type"] == "text/markdown"
    assert fields.get_all("Project-URL")
    assert "Operating System :: POSIX :: Linux" in fields.get_all("Classifier", [])
    assert (ROOT / "README.md").read_text().splitlines()[0] in str(fields.get_payload())
