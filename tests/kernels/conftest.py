"""Kernels that operators run, each booted once for all its tests.

KUBEPROXY_KERNELS names them: packages of Debian, or .deb files (`make test-kernels KERNELS=…`).
What cannot be had is skipped, with the reason. KUBEPROXY_KERNEL_RESULTS names a file that keeps
results.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from scripts.docs.kernels import Outcome, read_kernel_results, write_kernel_results

from kpctl.places.debian_kernel import NoKernel, find_kernel
from kpctl.places.qemu import EmulatedKernel, missing

DEFAULT = "linux-image-amd64 linux-image-6.12-amd64"
NAMES = os.environ.get("KUBEPROXY_KERNELS", DEFAULT).split()
PRELOAD = ("asyncio", "yaml", "kpctl.flows.lab_run", "tests.support.userspace_flows")
"""What nearly every call imports."""


def boot(name: str, preload: Sequence[str] = PRELOAD) -> Iterator[EmulatedKernel]:
    """Boot a kernel, or skip the test loudly."""
    if reason := missing():
        pytest.skip(reason)
    try:
        kernel = find_kernel(name)
    except NoKernel as error:
        pytest.skip(f"no kernel {name}: {error}")
    with EmulatedKernel(kernel, preload=preload, paths=[Path(__file__).parents[2]]) as booted:
        yield booted


@pytest.fixture(scope="session", params=NAMES, ids=lambda name: Path(name).name.partition("_")[0])
def kernel(request: pytest.FixtureRequest) -> Iterator[EmulatedKernel]:
    """One of the kernels."""
    yield from boot(request.param)


PARTS = {
    "test_flow_holds": "flows",
    "test_a_mode_carries_traffic": "traffic",
    "test_a_missing_module_is_named": "modules",
    "test_a_kernel_that_is_too_old_is_named": "release",
    "test_rules_that_another_program_removed_come_back": "drift",
    "test_a_mode_takes_over_from_another_under_load": "switches",
    "test_the_kernel_holds_what_upstream_left": "golden",
    "test_the_image_serves": "image",
    "test_the_unit_under_systemd": "unit",
}
"""Which tests are kept under which name."""
CONNECTIONS = "connections"
"""A property of a test: how many it counted."""
_MODE_OF_PART = {"golden": "ipvs", "release": "nftables"}
_MODE, _NAME = ("mode", "after"), ("key", "name", "before")
"""Parameters of tests that are kept as the mode and as the name of a result."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the outcome of a test in the file that is named, if one is."""
    report = yield
    file = os.environ.get("KUBEPROXY_KERNEL_RESULTS")
    if file and report.when == "call" and isinstance(item, pytest.Function):
        _keep(Path(file), item, report)
    return report


def _keep(file: Path, item: pytest.Function, report: pytest.TestReport) -> None:
    part = PARTS.get(item.originalname)
    if part is None or report.skipped:
        return
    results = read_kernel_results(file)
    values = item.callspec.params if hasattr(item, "callspec") else {}
    counted = dict(item.user_properties).get(CONNECTIONS, 0)
    outcome = Outcome(report.outcome, f"{datetime.now(UTC):%Y-%m-%d}", int(str(counted)))
    mode = _first(values, _MODE) or _MODE_OF_PART[part]
    name = _first(values, _NAME) or part
    results.put(_release(item), part, mode, name, outcome)
    write_kernel_results(file, results)


def _first(values: Mapping[str, object], names: Sequence[str]) -> str:
    return next((str(values[name]) for name in names if name in values), "")


def _release(item: pytest.Function) -> str:
    booted = (item.funcargs.get(name) for name in ("kernel", "fresh"))
    return next(
        (found.kernel.release for found in booted if isinstance(found, EmulatedKernel)), "unknown"
    )
