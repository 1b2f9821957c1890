"""A network namespace of their own for tests that program the kernel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.nft_kit import OPEN

from kpctl.places.scratch import scratch_namespace


@pytest.fixture
def namespace() -> Iterator[None]:
    """The test runs in a fresh network namespace, which vanishes with it."""
    with scratch_namespace():
        yield


@pytest.fixture
async def closing() -> AsyncIterator[None]:
    """Close the sockets that the test's proxies opened."""
    yield
    while OPEN:
        await OPEN.pop().close()
