"""Metrics of health checks: there while something is checked, and few."""

from __future__ import annotations

from tests.support.builders import endpoint, endpoint_slice, service
from tests.support.spine import Spine

from kubeproxy.facts.ids import Family
from kubeproxy.facts.policy import CheckKind, HealthCheck
from kubeproxy.status.metrics import Metrics
from kubeproxy.sync.checks import HealthChecks


def shown(metrics: Metrics) -> list[str]:
    text = metrics.scrape()[1].decode()
    return [line for line in text.splitlines() if line.startswith("kubeproxy_health_check")]


async def test_series_appear_with_the_first_check() -> None:
    metrics, checks = Metrics("nftables"), HealthChecks()
    metrics.serve_health_checks(checks)
    assert shown(metrics) == []
    spine = Spine(families=[Family.IPV4], plan_listeners=[checks])
    checks.report_to(spine.engines)
    engine = spine.engines[Family.IPV4]
    engine.set_service(service(health_check=HealthCheck(CheckKind.TCP)))
    engine.set_slice(endpoint_slice(endpoints=[endpoint()]), trigger_time=None)
    spine.sync()
    await spine.rounds()
    assert checks.checker is not None
    checks.checker.outcomes["tcp", "refused"] += 2
    assert shown(metrics) == [
        'kubeproxy_health_check_endpoints{state="failing"} 0',
        'kubeproxy_health_check_endpoints{state="passing"} 1',
        'kubeproxy_health_checks_total{kind="tcp",result="refused"} 2',
        "kubeproxy_health_checks_waiting 0",
    ]
    checks.close()
