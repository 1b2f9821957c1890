"""One real cluster for all tests of this folder. Where it cannot be, tests skip loudly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.pack.image import build_image

from kpctl.apiserver.build import NoGo
from kpctl.kubernetes.cluster import OUR_PROXY, Cluster, ClusterOptions
from kpctl.kubernetes.load import Load
from kpctl.kubernetes.programs import CLUSTER_PROGRAMS, build_all, missing, unbuilt
from kpctl.kubernetes.swap import set_image
from kpctl.kubernetes.workload import install_web, web_clients

MAY_BUILD = "KUBEPROXY_BUILD_CLUSTER"
IMAGE = "KUBEPROXY_CLUSTER_IMAGE"
SECOND_IMAGE = "localhost/kubeproxy:second"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cluster comes up within the first test, and programs may be built there."""
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.timeout(7200 if os.environ.get(MAY_BUILD) else 900))


def say(text: str) -> None:
    print(text, file=sys.stderr)


def require_cluster() -> None:
    """Skip with the reason where no cluster can run. Build programs only when asked to."""
    if reason := missing():
        pytest.skip(f"NO CLUSTER TEST RUNS: {reason}")
    names = unbuilt()
    if names and not os.environ.get(MAY_BUILD):
        pytest.skip(
            f"NO CLUSTER TEST RUNS: not built: {', '.join(names)}; make test-cluster builds"
        )
    try:
        build_all(CLUSTER_PROGRAMS, say)
    except NoGo as error:
        pytest.skip(f"NO CLUSTER TEST RUNS: {error}")


def image_of_this_source(output: Path) -> Path:
    """The archive of our image: one that is named, or built here."""
    if named := os.environ.get(IMAGE):
        return Path(named)
    try:
        build_image(output, "amd64")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NO CLUSTER TEST RUNS: our image cannot be built here (make image): {error}")
    (archive,) = output.glob("*.oci.tar")
    return archive


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with our image of this source as kube-proxy, and web servers."""
    require_cluster()
    image = image_of_this_source(tmp_path_factory.mktemp("image"))
    with Cluster(ClusterOptions(image=image), say) as cluster:
        for node in cluster.nodes:
            node.tag(OUR_PROXY, SECOND_IMAGE)
        install_web(cluster)
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """The cluster as each test finds it: our image everywhere, four web servers."""
    running.control.kubectl(*set_image(OUR_PROXY))
    running.wait_for_proxy()
    install_web(running)
    return running


@pytest.fixture
def load(cluster: Cluster) -> Iterator[Load]:
    """Clients of every kind that open connections all the time."""
    with Load(web_clients(cluster)) as load:
        yield load
