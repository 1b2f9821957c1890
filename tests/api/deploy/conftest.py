"""What the tests of deploy/ share: kubectl, and kubeadm's objects in a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.kubectl import Kubectl

from kpctl.apiserver.real import RealApiServer

KUBEADM = Path(__file__).parent / "kubeadm.yaml"


@pytest.fixture
def kubectl(real: RealApiServer) -> Kubectl:
    return Kubectl(real)


@pytest.fixture
def kubeadm(kubectl: Kubectl) -> Iterator[Kubectl]:
    """A cluster with the kube-proxy that kubeadm has made; removed again."""
    kubectl("apply", "-f", str(KUBEADM))
    yield kubectl
    kubectl("delete", "--ignore-not-found", "-f", str(KUBEADM))
