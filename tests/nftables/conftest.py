"""A network namespace of their own for tests that program the kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kpctl.places.scratch import scratch_namespace


@pytest.fixture
def namespace() -> Iterator[None]:
    """The test runs in a fresh network namespace, which vanishes with it."""
    with scratch_namespace():
        yield
