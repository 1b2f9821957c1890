"""Fixtures of the ipvs tests: a namespace as long-lived as a thread, and a kernel with IPVS."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kpctl.places.uml import UserModeKernel, missing

PRELOAD = (
    "asyncio",
    "yaml",
    "kubeproxy.kernel.route.table",
    "kubeproxy.kernel.ipset.table",
    "kubeproxy.kernel.ipvs.table",
    "tests.support.ipvs_golden",
    "tests.support.pod_server",
)
"""What nearly every call into the user-mode kernel imports."""

_CLONE_NEWNET = 0x40000000


def _leave_main_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


@pytest.fixture
def in_namespace() -> Iterator[Callable[[Callable[[], object]], object]]:
    """Run a function in a fresh network namespace; the kernel removes it with the thread."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with ThreadPoolExecutor(max_workers=1, initializer=_leave_main_namespace) as pool:
        yield lambda function: pool.submit(function).result(LIMIT_SECONDS)


class PatientKernel(UserModeKernel):
    """Its calls may take as long as a busy machine makes them; what hangs is ended by pytest."""

    def call(
        self, file: Path, function: str, *arguments: object, timeout_seconds: float = 3600.0
    ) -> object:
        return super().call(file, function, *arguments, timeout_seconds=timeout_seconds)


@pytest.fixture(scope="session")
def uml() -> Iterator[UserModeKernel]:
    """A kernel with IPVS, booted once for all tests that ask for it."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with PatientKernel(preload=PRELOAD, paths=[Path(__file__).parents[2]]) as kernel:
        yield kernel
