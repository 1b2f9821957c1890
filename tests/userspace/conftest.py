"""A carrier and servers to carry to, for the length of one test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.userspace_kit import Proxy, Servers, running


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with running() as made:
        yield made


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    made = Servers()
    yield made
    await made.close()
