"""Watching for foreign changes never ends the proxy."""

from __future__ import annotations

import pytest
from tests.support.engine_kit import RecordedDrifts
from tests.support.waiting import limit

from kubeproxy.errors import KernelError
from kubeproxy.modes.base import DriftListener
from kubeproxy.run.serving import keep_watching


@pytest.mark.parametrize("fault", [KernelError("no tool"), RuntimeError("can't start new thread")])
async def test_a_watch_that_fails_is_started_again(fault: Exception) -> None:
    """What happened meanwhile is unknown, so it counts as a change."""
    drifts = RecordedDrifts()
    faults = [fault, ExceptionGroup("tasks", [fault])]

    async def watch(drifted: DriftListener) -> None:
        if faults:
            raise faults.pop()

    async with limit():
        await keep_watching(watch, drifts, pause_seconds=0.0)
    assert drifts == ["perhaps, while nothing could be noticed"] * 2
