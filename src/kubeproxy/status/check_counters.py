"""What health checks of endpoints have found, read when scraped.

Bounded: there are a few kinds of checks and of results. Which endpoint fails, and why, is what
`kpctl explain` shows.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeproxy.status.families import Metric
from kubeproxy.status.metric_table import HEALTH_CHECKS
from kubeproxy.sync.checks import HealthChecks

_ENDED, _ENDPOINTS, _WAITING = HEALTH_CHECKS


class CheckCounters:
    """The counters of one proxy's checks; nothing while it checks nothing."""

    def __init__(self, checks: HealthChecks) -> None:
        self._checks = checks

    def collect(self) -> Iterator[Metric]:
        checker = self._checks.checker
        if checker is None:
            return
        ended = Metric(_ENDED.name, "counter", _ENDED.help_text, _ENDED.labels)
        for labels, count in checker.outcomes.items():
            ended.add(labels, count)
        found = Metric(_ENDPOINTS.name, "gauge", _ENDPOINTS.help_text, _ENDPOINTS.labels)
        found.add(("passing",), checker.targets - checker.failing)
        found.add(("failing",), checker.failing)
        waiting = Metric(_WAITING.name, "gauge", _WAITING.help_text)
        waiting.add((), checker.waiting)
        yield from (ended, found, waiting)
