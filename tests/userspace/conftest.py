"""A carrier and servers to carry to, for the length of one test."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.userspace_kit import Proxy, Servers, running

_SLOW_PYTHON = """\
#!/bin/sh
until [ -e {gate} ]; do sleep 0.01; done
exec {python} "$@"
"""


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with running() as made:
        yield made


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    made = Servers()
    yield made
    await made.close()


@pytest.fixture
def slow_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Starts of Python take until this file exists."""
    gate, script = tmp_path / "gate", tmp_path / "python"
    paths = {"gate": shlex.quote(str(gate)), "python": shlex.quote(sys.executable)}
    script.write_text(_SLOW_PYTHON.format(**paths))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    yield gate
    gate.touch()  # for what still waits after a failure
