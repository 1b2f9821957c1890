"""Our own version is where operators look; what upstream's tools read still names Kubernetes."""

from __future__ import annotations

import pytest
from tests.conftest import Run
from tests.support.host import Host

from kubeproxy.api.transport import user_agent
from kubeproxy.version import KUBERNETES_VERSION, PACKAGE_VERSION

OWN = f"kubeproxy {PACKAGE_VERSION}"
METRICS = 10249


def test_the_plain_version_is_upstreams_and_the_raw_one_has_both(run: Run) -> None:
    assert run(["kube-proxy", "--version"]).stdout == f"Kubernetes {KUBERNETES_VERSION}\n"
    raw = run(["kube-proxy", "--version=raw"]).stdout
    assert f'GitVersion:"{KUBERNETES_VERSION}"' in raw
    assert f'Distribution:"{OWN}' in raw


def test_the_user_agent_has_both() -> None:
    assert user_agent().startswith(f"kube-proxy/{KUBERNETES_VERSION} (linux/")
    assert user_agent().endswith(f" kubeproxy/{PACKAGE_VERSION}")


@pytest.mark.kernel
def test_log_status_page_and_metrics_of_a_running_proxy_have_both(host: Host) -> None:
    host.start("--proxy-mode=nftables")
    host.until(lambda: host.get(METRICS, "/metrics")[0] == 200, "serving metrics")
    first = host.log.splitlines()[0]
    assert f'distribution="{OWN}' in first
    assert KUBERNETES_VERSION in first
    status = host.get(METRICS, "/statusz")[1]
    assert OWN in status
    assert KUBERNETES_VERSION.removeprefix("v") in status
    body = host.get(METRICS, "/metrics")[1]
    assert f'kubeproxy_distribution_info{{commit="",version="{PACKAGE_VERSION}"}} 1' in body
    assert f'git_version="{KUBERNETES_VERSION}"' in body
