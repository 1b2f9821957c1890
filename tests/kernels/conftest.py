"""Kernels that operators run, each booted once for all its tests.

KUBEPROXY_KERNELS names them: packages of Debian, or .deb files (`make test-kernels KERNELS=…`).
What cannot be had is skipped, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpctl.places.debian_kernel import NoKernel, find_kernel
from kpctl.places.qemu import EmulatedKernel, missing

DEFAULT = "linux-image-amd64 linux-image-6.12-amd64"
NAMES = os.environ.get("KUBEPROXY_KERNELS", DEFAULT).split()
PRELOAD = ("asyncio", "yaml", "kpctl.flows.lab_run", "tests.support.userspace_flows")
"""What nearly every call imports."""


def boot(name: str) -> Iterator[EmulatedKernel]:
    """Boot a kernel, or skip the test loudly."""
    if reason := missing():
        pytest.skip(reason)
    try:
        kernel = find_kernel(name)
    except NoKernel as error:
        pytest.skip(f"no kernel {name}: {error}")
    with EmulatedKernel(kernel, preload=PRELOAD, paths=[Path(__file__).parents[2]]) as booted:
        yield booted


@pytest.fixture(scope="session", params=NAMES, ids=lambda name: Path(name).name.partition("_")[0])
def kernel(request: pytest.FixtureRequest) -> Iterator[EmulatedKernel]:
    """One of the kernels."""
    yield from boot(request.param)
