"""Shared by the tests of the API edge: objects, certificates, and a sink that remembers."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import msgspec
import pytest

from kpctl.apiserver.build import NoGo, built
from kpctl.apiserver.pki import Pki, make_authority
from kpctl.apiserver.real import RealApi
from kpctl.apiserver.small import FakeApi
from kpctl.places.network import PrivateNetwork


@pytest.fixture
async def fake() -> AsyncIterator[FakeApi]:
    async with FakeApi().serving() as api:
        yield api


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


Until = Callable[[Callable[[], object]], Awaitable[None]]


@pytest.fixture
def until() -> Until:
    """Wait, as short as possible, for something that another task makes true."""

    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)

    return wait


class Cluster(msgspec.Struct, frozen=True):
    """A real API server and the private network it listens in."""

    network: PrivateNetwork
    api: RealApi


@pytest.fixture(scope="session")
def real_programs() -> None:
    """etcd and kube-apiserver exist, or the reason why they do not is told."""
    if os.geteuid() != 0:
        pytest.skip("no real API server: making its network namespace needs root")
    try:
        for program in ("etcd", "kube-apiserver"):
            built(program)
    except NoGo as reason:
        pytest.skip(f"NO REAL API SERVER: {reason}")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, real_programs: None) -> Iterator[Cluster]:
    network = PrivateNetwork()
    api = RealApi(tmp_path_factory.mktemp("real"), network.command)
    try:
        with network.inside():
            api.start()
        yield Cluster(network, api)
    finally:
        api.stop()
        network.close()


@pytest.fixture
def real(cluster: Cluster) -> Iterator[RealApi]:
    """The API server; the test runs inside its network, and finds what others left behind."""
    with cluster.network.inside():
        cluster.api.heal()
        yield cluster.api
