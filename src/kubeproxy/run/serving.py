"""Everything that runs at the same time: engines, source, servers and watchers.

`Proxy.run` opens the task group that holds all long-running work (a source opens another inside
it, one task per collection). A failure that is not handled closer to its cause or a reason to
restart ends the group and with it the process. The rules stay in the kernel. Signals end the
process without asking (`process`).
"""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping

from msgspec.structs import replace

from kubeproxy.api.decode import is_eligible_node
from kubeproxy.api.source import Source
from kubeproxy.config.command import Settings
from kubeproxy.errors import Busy, KernelError, ProxyError, fault_text
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import SERVICE_LINK, NodeFacts
from kubeproxy.inspection.journal import Journal
from kubeproxy.inspection.pages import Pages
from kubeproxy.inspection.server import InspectionServer, inspection_handler
from kubeproxy.kernel.conntrack.table import Search, delete_stale
from kubeproxy.kernel.route.table import host_addresses, watch_addresses
from kubeproxy.kernel.sock_diag.table import close_sockets
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import LogLimit
from kubeproxy.modes.base import AnyBackend, AnyMode, DriftListener
from kubeproxy.plan.conntrack import Socket
from kubeproxy.run.about import build_info, pages, service_summary
from kubeproxy.run.admission import Admission
from kubeproxy.run.leftovers import Leftovers, running_of
from kubeproxy.run.notify import Notifier
from kubeproxy.run.prepare import Prepared
from kubeproxy.run.reconfigure import Reconfiguration
from kubeproxy.run.reporter import NodeObserver, Reporter
from kubeproxy.run.service_metrics import ServiceMetrics
from kubeproxy.status.connections import Connections
from kubeproxy.status.event_series import WARNING, Reference
from kubeproxy.status.events import Recorder
from kubeproxy.status.health import ProxyHealth
from kubeproxy.status.health_server import HEALTHZ_ROLE, health_handler
from kubeproxy.status.http import HttpServer, ServeError
from kubeproxy.status.metrics import Metrics
from kubeproxy.status.metrics_server import METRICS_ROLE, metrics_handler
from kubeproxy.status.refused_targets import RefusedTargets
from kubeproxy.status.service_counters import ServiceCounters
from kubeproxy.status.service_events import ServiceEvents
from kubeproxy.status.service_health import ServiceHealth
from kubeproxy.sync.checks import HealthChecks
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.engine import FULL_SYNC_SECONDS, Engine, EngineTimes
from kubeproxy.sync.flows import FlowCleaner, RoundsFirst
from kubeproxy.sync.intake import Intake
from kubeproxy.sync.pipeline import PlanListener
from kubeproxy.version import COMMIT, PACKAGE_VERSION

logger = get_logger(__name__)

ADDRESS_RETRY_SECONDS = 1.0
WATCH_RETRY_SECONDS = 30.0
EVENT_GRACE_SECONDS = 2.0
"""How long the process waits at its end for a last event to be delivered."""


class RestartNeeded(ProxyError):
    """The process must end with code 1, so that its supervisor starts it again."""


class HandedOver(ProxyError):
    """Another proxy takes over; only what this process carries keeps it from ending."""


class Proxy:
    """One running proxy."""

    def __init__(
        self,
        settings: Settings,
        mode: AnyMode,
        *,
        source: Source,
        prepared: Prepared,
        metrics: Metrics,
        clock: Clock,
        notifier: Notifier,
        admission: Admission,
    ) -> None:
        config = settings.config
        self._admission = admission
        self._settings = settings
        self._notifier = notifier
        self._prepared = prepared
        self._source = source
        self._node = Reference("Node", prepared.node_name)
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._address_retry: asyncio.TimerHandle | None = None
        self._address_log = LogLimit()
        self._probe_connections = Connections()
        self._metrics = metrics
        metrics.serve_packet_counts(_PacketCounts(prepared.backends).read)
        self._health = ProxyHealth(
            2 * config.sync_period_seconds, monotonic=time.monotonic, wall_ns=time.time_ns
        )
        self._health.is_waiting = admission.is_waiting
        self._health.node_eligible = (
            is_eligible_node(prepared.node) if prepared.node else not source.needs_node
        )
        self._recorder = Recorder(
            source.poster, hostname=socket.gethostname(), now_ns=time.time_ns, random=random.random
        )
        addresses = self._first_addresses()
        nodes = {f: n.with_addresses(addresses[f]) for f, n in prepared.nodes.items()}
        is_inspected = bool(settings.extensions.text("inspection-socket"))
        journal = Journal(clock) if is_inspected else None
        self._leftovers = Leftovers(
            running_of(mode, prepared),
            forget_flows=forget_flows,
            removed=self._doubt_flows,
        )
        self._reporter = Reporter(
            node_name=prepared.node_name,
            clock=clock,
            metrics=self._metrics,
            health=self._health,
            recorder=self._recorder,
            service_health={f: self._service_health(node) for f, node in nodes.items()},
            journal=journal,
            first_sync_done=self._first_sync_done,
        )
        self._checks = HealthChecks(journal)
        metrics.serve_health_checks(self._checks)
        plan_listeners: list[PlanListener] = [self._checks, RefusedTargets()]
        if settings.extensions.is_on("service-events"):
            plan_listeners.append(ServiceEvents(self._recorder))
        turns = RoundsFirst()
        self._flows = {
            family: FlowCleaner(
                family,
                delete_stale,
                clock=clock,
                listener=self._reporter,
                turns=turns,
                close_sockets=close_sockets,
            )
            for family in nodes
        }
        self._engines = {
            family: Engine(
                prepared.backends[family],
                node,
                clock=clock,
                listener=self._reporter,
                flows=self._flows[family],
                times=_times(settings, mode),
                plan_listeners=plan_listeners,
            )
            for family, node in nodes.items()
        }
        self._checks.report_to(self._engines)
        self._intake = Intake(
            self._engines,
            prepared.node_name,
            counters=self._metrics,
            node_listener=self._node_observer(),
            started_at=clock.time(),
            changes=journal,
        )
        self._metrics_server = self._make_metrics_server()
        self._inspection = None if journal is None else self._inspection_server(journal, clock)

    def _inspection_server(self, journal: Journal, clock: Clock) -> InspectionServer:
        pages = Pages(
            replace(self._settings, extensions=self._prepared.extensions),
            node_name=self._prepared.node_name,
            source=self._source,
            engines=self._engines,
            health=self._health,
            journal=journal,
            clock=clock,
            checks=self._checks,
        )
        place = self._settings.extensions.text("inspection-socket")
        return InspectionServer(place, inspection_handler(pages))

    def _service_health(self, node: NodeFacts) -> ServiceHealth:
        has_health_server = bool(self._settings.config.healthz_bind_address)
        return ServiceHealth(
            node.family,
            node_name=node.name,
            is_healthy=self._health.is_healthy if has_health_server else lambda: True,
            addresses=None if node.node_ports_match_all else node.node_port_addresses,
            recorder=self._recorder,
            connections=self._probe_connections,
        )

    def _node_observer(self) -> NodeObserver:
        return NodeObserver(
            self._health,
            node_ips=self._prepared.node_ips,
            pod_cidrs=self._prepared.pod_cidrs,
            uses_pod_cidrs=self._settings.config.detect_local_mode == "NodeCIDR",
            restart=self._restart,
        )

    def _first_sync_done(self) -> None:
        pipelines = {family: engine.pipeline for family, engine in self._engines.items()}
        summary = service_summary(self._settings, pipelines)
        logger.info("Serving", **summary)
        self._notifier.ready(f"Serving {summary['services']} services in {summary['mode']} mode")
        _freeze_garbage_collector()
        self._leftovers.first_sync_done()

    def _doubt_flows(self) -> None:
        for engine in self._engines.values():
            engine.doubt_flows()

    def _restart(self, reason: str) -> None:
        if not self._ending.done() and not self.begin_hand_over():
            self._ending.set_exception(RestartNeeded(reason))

    async def run(self) -> None:
        """Run everything at once. Raises the ProxyError that ended it, if it was one."""
        self._metrics.build_info(**build_info(self._settings.version))
        self._metrics.set("kubeproxy_distribution_info", 1, version=PACKAGE_VERSION, commit=COMMIT)
        self._metrics.feature_gates(
            (gate.name, gate.stage.value, on) for gate, on in self._settings.gates
        )
        try:
            async with asyncio.TaskGroup() as group:
                for work in self._work():
                    group.create_task(work)
                group.create_task(self._program(group))
                self._reporter.started(self._prepared.nodes)
                await self._ending
        except* ProxyError as errors:
            failure = _first(errors)
            if isinstance(failure, ServeError):
                await self._record_failure(failure)
            if not isinstance(failure, HandedOver):
                raise failure from None
            await self._hand_over()
        finally:
            self._checks.close()
            for backend in self._prepared.backends.values():
                await backend.close()

    def _work(self) -> list[Coroutine[None, None, None]]:
        config = self._settings.config
        work = [
            self._recorder.run(),
            self._metrics_server.run(),
            self._source.run(self._intake, self._prepared.node_name),
            follow_addresses(self._addresses_changed),
            self._reconfiguration().run(),
            self._notifier.feed_watchdog(self._health.is_healthy),
        ]
        if config.healthz_bind_address:
            work.append(self._health_server().run())
        if self._inspection is not None:
            work.append(self._inspection.run())
        if most := self._settings.extensions.number("service-metrics"):
            counters = ServiceCounters(most)
            self._metrics.serve_service_counters(counters)
            work.append(ServiceMetrics(counters, self._engines.values()).run())
        return work

    async def _program(self, group: asyncio.TaskGroup) -> None:
        """Start everything that changes the kernel, when it is our turn."""
        if self._admission.other:
            self._report_other()
        await self._admission.wait(self._metrics_server.is_serving.is_set)
        self._health.is_waiting = False
        for family, engine in self._engines.items():
            engine.request()  # health counts from here
            group.create_task(engine.run())
            group.create_task(self._flows[family].run())
            watch = self._prepared.backends[family].watch
            group.create_task(keep_watching(watch, engine.report_drift))
        group.create_task(self._leftovers.run())

    def _report_other(self) -> None:
        """Report that another proxy serves here, wherever someone may look."""
        other = self._admission.other
        if self._admission.is_waiting:
            note = f"{other} runs in this network namespace; waiting until it ends"
            self._notifier.ready(f"Waiting for the end of {other}")
        else:
            note = f"{other} runs in this network namespace; each undoes what the other does"
            logger.error(None, "Two proxies change the same rules", other=other)
        self._recorder.record(
            self._node, type=WARNING, reason="AnotherProxy", action="StartKubeProxy", note=note
        )

    # --- the end ---

    def begin_hand_over(self) -> bool:
        """Stay for connections that this process carries, if a successor waits to take over.

        Return whether `run` comes to its end by itself.
        """
        if self._ending.done():  # a rollout of another configuration: restart, then a signal
            ending = None if self._ending.cancelled() else self._ending.exception()
            return isinstance(ending, HandedOver)
        carries = any(backend.carries for backend in self._prepared.backends.values())
        if not carries or not self._admission.has_successor():
            return False
        self._ending.set_exception(HandedOver("another kube-proxy takes over"))
        return True

    async def _hand_over(self) -> None:
        self._admission.close()
        logger.info("Another kube-proxy takes over; staying until carried connections have ended")
        await asyncio.gather(*(b.hand_over() for b in self._prepared.backends.values()))
        logger.info("Stopped; no connection is carried any more")

    # --- the host's addresses ---

    def _addresses_changed(self) -> None:
        """Take over the host's addresses. If they cannot be read now, try again in a moment."""
        if self._address_retry is not None:
            # The read to come finds this change, too. Under heavy churn reading at every event
            # would leave no time for anything else.
            return
        try:
            addresses = host_addresses(without_links={SERVICE_LINK})
        except KernelError as error:
            self._retry_addresses_later(error)
            return
        self._intake.addresses_changed(addresses)

    def _first_addresses(self) -> Mapping[Family, tuple[str, ...]]:
        """Return the host's addresses, or none for a moment while they change all the time."""
        try:
            return host_addresses(without_links={SERVICE_LINK})
        except Busy as error:
            self._retry_addresses_later(error)
            return dict.fromkeys(Family, ())

    def _retry_addresses_later(self, error: KernelError) -> None:
        if self._address_log.is_due():
            logger.error(error, "Cannot read the host's addresses; trying again")
        self._address_retry = asyncio.get_running_loop().call_later(
            ADDRESS_RETRY_SECONDS, self._retry_addresses
        )

    def _retry_addresses(self) -> None:
        self._address_retry = None
        self._addresses_changed()

    def _reconfiguration(self) -> Reconfiguration:
        return Reconfiguration(
            self._settings,
            node=self._node,
            recorder=self._recorder,
            metrics=self._metrics,
            restart=self._restart,
            random=random.random,
        )

    async def _record_failure(self, failure: ServeError) -> None:
        """Record an event on the Node and wait a moment for it to be delivered."""
        self._recorder.record(
            self._node,
            type=WARNING,
            reason=failure.event_reason,
            action="StartKubeProxy",
            note=str(failure),
        )
        try:
            await asyncio.wait_for(self._recorder.drain(), timeout=EVENT_GRACE_SECONDS)
        except TimeoutError:
            return

    def _is_waiting(self) -> bool:
        return self._admission.is_waiting

    def _health_server(self) -> HttpServer:
        config = self._settings.config
        return HttpServer(
            HEALTHZ_ROLE,
            config.healthz_bind_address,
            health_handler(self._health, self._metrics),
            hard_fail=config.bind_address_hard_fail,
            is_taken=self._is_waiting,
            sleep=self._admission.sleep,
        )

    def _make_metrics_server(self) -> HttpServer:
        config = self._settings.config
        return HttpServer(
            METRICS_ROLE,
            config.metrics_bind_address,
            metrics_handler(
                pages(self._settings, self._metrics, self._prepared.identity, self._is_waiting)
            ),
            hard_fail=config.bind_address_hard_fail,
            is_taken=self._is_waiting,
            sleep=self._admission.sleep,
        )


async def follow_addresses(
    changed: Callable[[], None], pause_seconds: float = ADDRESS_RETRY_SECONDS
) -> None:
    """Call `changed` whenever the host's addresses may have. What fails is tried again."""
    log = LogLimit()
    while True:
        try:
            await watch_addresses(changed, without_links={SERVICE_LINK})
        except KernelError as error:
            if log.is_due():
                logger.error(error, "Cannot watch the host's addresses; trying again")
        await asyncio.sleep(pause_seconds)
        changed()


async def keep_watching(
    watch: Callable[[DriftListener], Awaitable[None]],
    drifted: DriftListener,
    pause_seconds: float = WATCH_RETRY_SECONDS,
) -> None:
    """Notice foreign changes until there is nothing to watch. What fails is tried again.

    A proxy that cannot notice edits of its rules serves all the same, so no fault of a tool, of
    the kernel or of ours ends it here.
    """
    while True:
        try:
            await watch(drifted)
        except Exception as fault:
            logger.error(_text_of(fault), "Foreign changes may go unnoticed; watching again soon")
        else:
            return
        await asyncio.sleep(pause_seconds)
        drifted("perhaps, while nothing could be noticed")


def _text_of(fault: Exception) -> str:
    """Word the first error of a group, or the one there is."""
    while isinstance(fault, ExceptionGroup):
        fault = fault.exceptions[0]
    return str(fault) if isinstance(fault, ProxyError) else fault_text(fault)


def _times(settings: Settings, mode: AnyMode) -> EngineTimes:
    period = settings.config.sync_period_seconds
    most = period if mode.runs_periodically else FULL_SYNC_SECONDS
    return EngineTimes(
        min_seconds=settings.config.min_sync_period_seconds,
        retry_seconds=period,
        max_seconds=most,
        # A mode that runs periodically gets no notification of foreign changes: it has to read.
        full_seconds=most,
    )


def _freeze_garbage_collector() -> None:
    """Exclude everything that exists after the first sync from garbage collection.

    It stays anyway, and at 10,000 Services a full collection takes tens of milliseconds, which
    would delay some change.
    """
    gc.collect()
    gc.freeze()


class _PacketCounts:
    """Kernel packet counters over all families."""

    def __init__(self, backends: Mapping[Family, AnyBackend]) -> None:
        self._backends = tuple(backends.values())

    def read(self, name: str) -> int | None:
        found = [backend.packet_count(name) for backend in self._backends]
        return next((count for count in found if count is not None), None)


async def forget_flows(family: Family, places: frozenset[Socket]) -> None:
    """Delete the UDP flows that were sent to these places, wherever they go."""
    found = await delete_stale(
        Search(family, Protocol.UDP, lambda to, _: to in places, destinations=places)
    )
    for problem in dict.fromkeys((found.error, *found.refused.values())):
        if problem:
            logger.error(problem, "Failed to delete conntrack entries", ipFamily=family.value)


def _first(errors: BaseExceptionGroup[ProxyError]) -> ProxyError:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, ProxyError)
    return found
