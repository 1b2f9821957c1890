"""A browser in a network of its own, where nothing but the dashboard answers."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.browser import Browser, skip_without_browser
from tests.support.host import PROGRAMS, Host
from tests.support.waiting import LIMIT_SECONDS

from kpctl.places.network import PrivateNetwork


class Desk:
    """A person's desk: one browser, and dashboards that are opened in it."""

    def __init__(self, host: Host, browser: Browser, directory: Path) -> None:
        self.host = host
        self.browser = browser
        self.directory = directory
        self._running: list[subprocess.Popen[str]] = []

    def serve(self, *arguments: str | Path) -> str:
        """Start `kpctl dashboard`. Return the address that it prints."""
        process = subprocess.Popen(
            [PROGRAMS / "kpctl", "dashboard", *arguments], stdout=subprocess.PIPE, text=True
        )
        self._running.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://\S+", line):
                return found[0]
        raise AssertionError(f"the dashboard ended with {process.wait()}")

    def stop(self) -> list[int]:
        """End the dashboards. Return their exit codes."""
        codes = []
        for process in self._running:
            process.terminate()
            codes.append(process.wait(LIMIT_SECONDS))
            assert process.stdout is not None
            process.stdout.close()
        self._running.clear()
        return codes


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    skip_without_browser()
    if os.geteuid() != 0:
        pytest.skip("making a network namespace needs root")
    directory = tmp_path_factory.mktemp("desk")
    network = PrivateNetwork()
    host = Host(network, directory)
    try:
        with network.inside():
            browser = Browser(directory / "profile")
            desk = Desk(host, browser, directory)
            try:
                yield desk
            finally:
                desk.stop()
                browser.close()
    finally:
        host.close()
        network.close()
