"""What holds for all tests, and fixtures of those that start our programs."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.support.commands import call_kpctl
from tests.support.effort import examples
from tests.support.groups import GroupScheduling, rank_of
from tests.support.host import PROGRAMS, Host
from tests.support.logged import Log, Logging
from tests.support.waiting import LIMIT_SECONDS

from kpctl.places.network import PrivateNetwork
from kubeproxy.logs import LogOptions, setup_logging, stop_logging

# How long an example takes says something about the machine, not about the program.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
)
settings.load_profile("any machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the longest groups of a parallel run begin first. Otherwise the order is as collected."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank_of(item.nodeid))


def pytest_collection_finish() -> None:
    """Keep what was collected out of every collection of garbage: nine thousand tests stay."""
    gc.collect()
    gc.freeze()


Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes of this run, with a file for each command that was started."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "started"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def run(tmp_path: Path, started: Path) -> Run:
    """Run one of our programs to its end, without privileges or a network of its own.

    Each command is started once by a run of tests, and called in a fork from then on.
    """
    words = {"COLUMNS": "140", "TERM": "dumb", "PYTHONUTF8": "1"}

    def call(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if argv[0] == "kpctl":
            mark = started / argv[1]
            if mark.exists():
                return call_kpctl(argv[1:], tmp_path, words)
            mark.touch()
        return subprocess.run(
            [PROGRAMS / argv[0], *argv[1:]],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            cwd=tmp_path,
            env={**os.environ, **words},
        )

    return call


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A network namespace to run the real programs in."""
    if os.geteuid() != 0:
        pytest.skip("making a network namespace needs root")
    network = PrivateNetwork()
    made = Host(network, tmp_path)
    try:
        yield made
    finally:
        made.close()
        network.close()


@pytest.fixture
def logging(capfd: pytest.CaptureFixture[str]) -> Logging:
    @contextmanager
    def context() -> Iterator[Log]:
        log = Log(lambda: capfd.readouterr().err)
        setup_logging(LogOptions())
        try:
            yield log
        finally:
            stop_logging()
            log.update()

    return context
