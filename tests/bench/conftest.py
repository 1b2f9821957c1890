"""What the tests of the benchmark share."""

from __future__ import annotations

import os

import pytest

from kpctl.apiserver.build import NoGo, built


@pytest.fixture
def programs() -> None:
    """Upstream's programs, or no test."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        for name in ("etcd", "kube-apiserver", "kube-proxy"):
            built(name)
    except NoGo as error:
        pytest.skip(f"nothing to compare with: {error}")
