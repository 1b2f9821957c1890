"""Shared by the tests of the API edge: a small and a real API server, certificates, waiting."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from kpctl.apiserver.build import NoGo, built
from kpctl.apiserver.pki import Pki, make_authority
from kpctl.apiserver.real import RealApiServer
from kpctl.apiserver.small import SmallApiServer
from kpctl.places.network import PrivateNetwork


@pytest.fixture
async def api() -> AsyncIterator[SmallApiServer]:
    async with SmallApiServer().serving() as server:
        yield server


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed: no certificates to test with")
    made = make_authority(tmp_path_factory.mktemp("pki"))
    made.sign("server", "/CN=server", "subjectAltName=IP:127.0.0.1,DNS:api.test")
    made.sign("elsewhere", "/CN=elsewhere", "subjectAltName=DNS:elsewhere.test")
    made.sign("client", "/O=nodes/CN=alice", "extendedKeyUsage=clientAuth")
    made.sign("client2", "/O=nodes/CN=bob", "extendedKeyUsage=clientAuth")
    return made


class Cluster(msgspec.Struct, frozen=True):
    """A real API server and the private network it listens in."""

    network: PrivateNetwork
    api: RealApiServer


@pytest.fixture(scope="session")
def real_programs() -> None:
    """Build etcd, kube-apiserver and kubectl, or skip with the reason why that is not possible."""
    if os.geteuid() != 0:
        pytest.skip("no real API server: making its network namespace needs root")
    try:
        # All that tests of the API use, before any of them enters a network without a way out.
        for program in ("etcd", "kube-apiserver", "kubectl"):
            built(program)
    except NoGo as reason:
        pytest.skip(f"NO REAL API SERVER: {reason}")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, real_programs: None) -> Iterator[Cluster]:
    network = PrivateNetwork()
    api = RealApiServer(tmp_path_factory.mktemp("real"), network.command)
    try:
        with network.inside():
            api.start()
        yield Cluster(network, api)
    finally:
        api.stop()
        network.close()


@pytest.fixture
def real(cluster: Cluster) -> Iterator[RealApiServer]:
    """The API server; the test runs inside its network, and finds what others left behind."""
    with cluster.network.inside():
        cluster.api.heal()
        yield cluster.api
