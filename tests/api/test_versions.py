"""Older API servers: the daemon programs what they have, and traffic passes.

Their kube-apiservers are built with Go once per machine, which takes many minutes each: `make
test-versions` does it. Without it, versions that are not built yet are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest
from tests.support import confined
from tests.support.waiting import LIMIT_SECONDS, wait_until

from kpctl.apiserver.admin import NODES, SERVICES, SLICES, ApiAdmin, Json, admin_of, endpoint_slice
from kpctl.apiserver.build import NoGo, built, is_built
from kpctl.apiserver.real import RealApiServer
from kpctl.places.network import PrivateNetwork
from kubeproxy.api.problems import Refused
from kubeproxy.api.transport import Request

pytestmark = [pytest.mark.api, pytest.mark.versions, pytest.mark.timeout(7200)]

NODE = "old-node"
SERVICE_CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"
STREAM = (
    ("watch", "true"),
    ("sendInitialEvents", "true"),
    ("resourceVersionMatch", "NotOlderThan"),
    ("timeoutSeconds", "1"),
)


class Release(msgspec.Struct, frozen=True):
    """A release of Kubernetes, and what its API server does not have by default."""

    version: str
    has_service_cidrs: bool
    streams_lists: bool


RELEASES = (
    Release("v1.30.14", has_service_cidrs=False, streams_lists=False),
    Release("v1.33.13", has_service_cidrs=True, streams_lists=False),
)


class OldCluster(msgspec.Struct, frozen=True):
    release: Release
    api: RealApiServer
    network: PrivateNetwork


@pytest.fixture(scope="module", params=RELEASES, ids=lambda release: release.version)
def old(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, real_programs: None
) -> Iterator[OldCluster]:
    release: Release = request.param
    may_build = "KUBEPROXY_BUILD_VERSIONS" in os.environ
    if not may_build and not is_built("kube-apiserver", release.version):
        pytest.skip(f"NO API SERVER {release.version}: `make test-versions` builds it with Go")
    try:
        built("kube-apiserver", release.version)
    except NoGo as reason:
        pytest.skip(f"NO API SERVER {release.version}: {reason}")
    network = PrivateNetwork()
    folder = tmp_path_factory.mktemp(release.version)
    api = RealApiServer(folder, network.command, version=release.version)
    try:
        with network.inside():
            api.start()
        yield OldCluster(release, api, network)
    finally:
        api.stop()
        network.close()


async def is_refused(admin: ApiAdmin, request: Request) -> bool:
    try:
        await admin.client.read(request)
    except Refused:
        return True
    return False


async def test_the_server_is_as_old_as_it_says(old: OldCluster) -> None:
    """Otherwise the next test would prove nothing."""
    with old.network.inside():
        async with admin_of(old.api.access()) as admin:
            assert (await admin.get("/version"))["gitVersion"] == old.release.version
            has_cidrs = not await is_refused(admin, Request("GET", SERVICE_CIDRS))
            stream = Request("GET", "/api/v1/services", query=STREAM)
            streams = not await is_refused(admin, stream)
    assert (has_cidrs, streams) == (old.release.has_service_cidrs, old.release.streams_lists)


async def make_objects(admin: ApiAdmin) -> None:
    await admin.create(NODES, {"metadata": {"name": NODE}})
    addresses = [{"type": "InternalIP", "address": confined.NODE_IP}]
    await admin.patch(f"{NODES}/{NODE}/status", {"status": {"addresses": addresses}})
    port = {"name": "web", "port": 80, "nodePort": 30080}
    spec = {"type": "NodePort", "clusterIP": confined.CLUSTER_IP, "ports": [port]}
    await admin.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec})
    await admin.create(SLICES, endpoint_slice("web", "web", confined.POD_IP))


def start(old: OldCluster, log: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "kubeproxy", f"--hostname-override={NODE}", "--v=2"]
    words.append("--inspection-socket=")
    words += ["--proxy-mode=nftables", f"--kubeconfig={old.api.kubeconfig()}"]
    with log.open("wb") as output:
        return subprocess.Popen([*words, *confined.QUIET_HOST], stdout=output, stderr=output)


def until(condition: Callable[[], object], log: Path) -> None:
    wait_until(condition, lambda: log.read_text()[-4000:])


def absent_requests() -> int:
    """Requests that were answered with 404 so far."""
    with urlopen("http://127.0.0.1:10249/metrics", timeout=LIMIT_SECONDS) as response:
        lines = response.read().decode().splitlines()
    name = 'rest_client_requests_total{code="404"'
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(name)))


async def test_traffic_passes_and_what_is_absent_is_logged_once(
    old: OldCluster, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with old.network.inside(), confined.pod():
        async with admin_of(old.api.access()) as admin:
            await make_objects(admin)
            process = start(old, log)
            try:
                assert confined.answers(process.poll) == sorted(confined.FRONTENDS), log.read_text()
                await change(admin, {"endpoints": []}, lambda: no_answer(process), log)
                ready = [{"addresses": [confined.POD_IP]}]
                await change(
                    admin, {"endpoints": ready}, lambda: confined.answers(process.poll), log
                )
                # Asked once, as a stream and as pages, and not again for minutes.
                assert absent_requests() == (0 if old.release.has_service_cidrs else 2)
            finally:
                process.terminate()
                process.wait(LIMIT_SECONDS)
    errors = [line for line in log.read_text().splitlines() if line.startswith("E")]
    absent = [line for line in errors if '"Failed to watch" ' in line]
    assert len(absent) == (0 if old.release.has_service_cidrs else 1), absent
    assert all("servicecidrs" in line.lower() for line in absent)
    assert ("No streaming list, fetching pages" in log.read_text()) != old.release.streams_lists


def no_answer(process: subprocess.Popen[bytes]) -> bool:
    return not confined.is_answered(confined.FRONTENDS["cluster IP"])


async def change(admin: ApiAdmin, patch: Json, is_done: Callable[[], object], log: Path) -> None:
    await admin.patch(f"{SLICES}/web", patch)
    until(is_done, log)
