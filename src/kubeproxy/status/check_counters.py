"""What health checks of endpoints have found, read when scraped.

Bounded: there are a few kinds of checks and of results. Which endpoint fails, and why, is what
`kpctl explain` shows.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kubeproxy.status.metric_table import HEALTH_CHECKS
from kubeproxy.sync.checks import HealthChecks

_ENDED, _ENDPOINTS, _WAITING = HEALTH_CHECKS


class CheckCounters(Collector):
    """The counters of one proxy's checks; nothing while it checks nothing."""

    def __init__(self, checks: HealthChecks) -> None:
        self._checks = checks

    def collect(self) -> Iterator[Metric]:
        checker = self._checks.checker
        if checker is None:
            return
        # The library appends the ending itself.
        name = _ENDED.name.removesuffix("_total")
        ended = CounterMetricFamily(name, _ENDED.help_text, labels=_ENDED.labels)
        for labels, count in checker.outcomes.items():
            ended.add_metric(labels, count)
        yield ended
        found = GaugeMetricFamily(_ENDPOINTS.name, _ENDPOINTS.help_text, labels=_ENDPOINTS.labels)
        found.add_metric(("passing",), checker.targets - checker.failing)
        found.add_metric(("failing",), checker.failing)
        yield found
        yield GaugeMetricFamily(_WAITING.name, _WAITING.help_text, value=checker.waiting)
