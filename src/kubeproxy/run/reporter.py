"""What the outcome of rounds and searches means outside: log lines, metrics, health, events.

Everything is computed from their reports. Nothing here decides what is programmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kubeproxy.api import objects
from kubeproxy.api.decode import decode_node_ips, decode_pod_cidrs, is_eligible_node
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.inspection.journal import Journal
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import LogLimit
from kubeproxy.status.event_series import NORMAL, WARNING, Reference, service_reference
from kubeproxy.status.events import Recorder
from kubeproxy.status.health import ProxyHealth
from kubeproxy.status.metrics import Metrics
from kubeproxy.status.service_health import ServiceHealth
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.pipeline import Pipeline
from kubeproxy.sync.report import FlowReport, Refusal, RoundReport

logger = get_logger(__name__)


class Reporter:
    """Passes what the engines report on to logs, metrics, health and Kubernetes events."""

    def __init__(
        self,
        *,
        node_name: str,
        clock: Clock,
        metrics: Metrics,
        health: ProxyHealth,
        recorder: Recorder,
        service_health: Mapping[Family, ServiceHealth],
        journal: Journal | None,
        first_sync_done: Callable[[], None] = lambda: None,
    ) -> None:
        """`first_sync_done` is called once, after the first success of every family."""
        self._node = Reference("Node", node_name)
        self._clock = clock
        self._metrics = metrics
        self._health = health
        self._recorder = recorder
        self._service_health = service_health
        self._journal = journal
        self._not_yet_synced = set(service_health)
        self._first_sync_done = first_sync_done
        self._flow_log = LogLimit()

    def started(self, nodes: Mapping[Family, NodeFacts]) -> None:
        """Report that the sync loops start.

        As upstream, a zone known by then is a request: where no list follows, health fails.
        """
        for family, node in nodes.items():
            self._health.updated(family)
            self._metrics.sync_queued(family, self._clock.time())
            if node.zone:
                self._health.queued(family)
        self._recorder.record(self._node, type=NORMAL, reason="Starting", action="StartKubeProxy")

    def sync_requested(self, family: Family) -> None:
        self._health.queued(family)
        self._metrics.sync_queued(family, self._clock.time())

    async def round_finished(self, report: RoundReport, pipeline: Pipeline) -> None:
        self._metrics.observe_round(report)
        if self._journal is not None:
            self._journal.round_finished(report)
        self._log(report)
        if report.drifted_items:
            self._report_drift(report)
        elif report.drift:
            # What another program did was noticed, but it left our rules as they were.
            logger.v(2).info("Rules checked, nothing of ours differs", cause=report.drift)
        for refusal in report.refused:
            self._report_refusal(refusal)
        if report.is_done:
            self._health.updated(report.family)
            ports = self._service_health[report.family]
            await ports.sync_services(pipeline.health_check_ports)
            ports.sync_endpoints(pipeline.local_ready)
            self._note_first_sync(report.family)

    def flows_cleaned(self, report: FlowReport) -> None:
        self._metrics.observe_flows(report)
        if self._journal is not None:
            self._journal.flows_cleaned(report)
        family = report.family.value
        if report.error and self._flow_log.is_due(report.error):
            logger.error(report.error, "Failed to list conntrack entries", ipFamily=family)
        for problem in filter(self._flow_log.is_due, report.refused):
            logger.error(problem, "Failed to delete conntrack entries", ipFamily=family)
        if report.unclosed and self._flow_log.is_due(report.unclosed):
            logger.error(report.unclosed, "Failed to close sockets", ipFamily=family)
        if report.reset:
            logger.info(
                "Connections to endpoints that have gone are reset",
                ipFamily=family,
                flows=report.reset,
                closedSockets=report.closed,
            )
        logger.v(2).info(
            "Stale flows deleted",
            ipFamily=family,
            elapsed=f"{report.seconds * 1000:.3f}ms",
            entries=report.deleted,
            owed=report.owed,
        )

    def _note_first_sync(self, family: Family) -> None:
        if family in self._not_yet_synced:
            self._not_yet_synced.discard(family)
            if not self._not_yet_synced:
                self._first_sync_done()

    def _log(self, report: RoundReport) -> None:
        if not report.is_success:
            logger.error(
                report.failure_text,
                "Sync failed" if report.error else "Services are refused by the kernel",
                ipFamily=report.family.value,
            )
        logger.v(2).info(
            "SyncProxyRules complete",
            ipFamily=report.family.value,
            elapsed=f"{report.duration_seconds * 1000:.3f}ms",
            full=report.is_full,
            services=report.services,
            changes=report.changes,
            batches=report.batches,
            bytes=report.bytes_sent,
        )

    def _report_drift(self, report: RoundReport) -> None:
        what = report.drift or "found at the periodic full sync"
        note = f"{report.family.value}: {report.drifted_items} items repaired; {what}"
        logger.error(None, "Another process changed our rules; repaired", detail=note)
        self._recorder.record(
            self._node, type=WARNING, reason="RulesRepaired", action="Repair", note=note
        )

    def _report_refusal(self, refusal: Refusal) -> None:
        """Record an event on the Service that cannot be programmed."""
        if refusal.service is not None:
            self._recorder.record(
                service_reference(refusal.service),
                type=WARNING,
                reason="FailedToProgramService",
                action="Sync",
                note=refusal.message[:1024],
            )


class NodeObserver:
    """Acts on changes of the Node object besides planning: eligibility, and when to restart."""

    def __init__(
        self,
        health: ProxyHealth,
        *,
        node_ips: Sequence[str],
        pod_cidrs: Sequence[str],
        uses_pod_cidrs: bool,
        restart: Callable[[str], None],
    ) -> None:
        self._health = health
        self._node_ips = tuple(node_ips)
        self._pod_cidrs = tuple(pod_cidrs)
        self._uses_pod_cidrs = uses_pod_cidrs
        self._restart = restart

    def node_changed(self, node: objects.Node) -> None:
        self._health.node_eligible = is_eligible_node(node)
        pod_cidrs = decode_pod_cidrs(node)
        if self._uses_pod_cidrs and pod_cidrs != self._pod_cidrs:
            logger.info(
                "PodCIDRs changed for the node",
                newPodCIDRs=list(pod_cidrs),
                oldPodCIDRs=list(self._pod_cidrs),
            )
            self._restart("PodCIDRs changed for the node")
        node_ips = decode_node_ips(node)
        if node_ips != self._node_ips:
            logger.info("NodeIPs changed for the node", newNodeIPs=list(node_ips))
            self._node_ips = node_ips

    def node_deleted(self) -> None:
        # Health keeps what the last object said: that is what upstream's users see.
        logger.info("Node is being deleted")
