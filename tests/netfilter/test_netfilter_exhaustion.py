"""A host without descriptors left: what the kernel edges need is an error to retry."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kubeproxy.errors import Busy
from kubeproxy.kernel.exec import run_tool
from kubeproxy.kernel.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from kubeproxy.kernel.xtables_lock import held_lock


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Allow this process so many more files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in range(limits[0]) if not is_open(number))
    lowest = [next(free) for _ in range(count + 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest[-1], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("left", [0, 1, 2])
async def test_a_tool_that_cannot_be_started_is_tried_again(left: int) -> None:
    """And what was opened for it is closed."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with descriptors_left(left), pytest.raises(Busy, match="cannot run true: too many open files"):
        await run_tool(["true"])
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert (await run_tool(["true"])).status == 0


@pytest.mark.parametrize("left", [0, 1])
async def test_a_lock_that_cannot_be_opened_is_tried_again(left: int, tmp_path: Path) -> None:
    with descriptors_left(left), pytest.raises(Busy):
        async with held_lock(tmp_path / "lock", f"\0{tmp_path}"):
            raise AssertionError("unreachable")


def test_a_netlink_socket_that_cannot_be_opened_is_tried_again() -> None:
    with descriptors_left(0), pytest.raises(Busy):
        NetlinkSocket(NETLINK_ROUTE)
