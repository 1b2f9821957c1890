"""Work for threads on a host that allows no more of them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.run.workers import Workers


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_without_a_thread_work_is_done_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.get_running_loop().set_default_executor(Workers())
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        assert await asyncio.to_thread(threading.current_thread) is threading.main_thread()
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)


async def test_work_waits_for_a_thread_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.get_running_loop().set_default_executor(Workers())
    go_on = threading.Event()
    first = asyncio.create_task(asyncio.to_thread(go_on.wait, LIMIT_SECONDS))
    await asyncio.sleep(0)
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        second = asyncio.create_task(asyncio.to_thread(threading.current_thread))
        await asyncio.sleep(0)
        assert not second.done()
    go_on.set()
    assert await first
    assert await second is not threading.main_thread()
