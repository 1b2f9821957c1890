"""One invocation of the daemon after its flags are parsed, from beginning to end.

write the configuration | clean up | prepare the host (and stop, with --init-only) | serve
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from traceback import extract_tb

from msgspec import Struct

from kubeproxy.api.annotations import parse_health_check
from kubeproxy.api.objects import HEALTH_CHECK_ANNOTATION
from kubeproxy.api.source import Source
from kubeproxy.config.command import Settings
from kubeproxy.config.write import write_config
from kubeproxy.errors import ConfigError, KernelError
from kubeproxy.go.text import format_os_error
from kubeproxy.kernel.allocator import return_freed_memory
from kubeproxy.kernel.capabilities import read_capabilities
from kubeproxy.logs import get_logger, stop_logging
from kubeproxy.logs.limit import LogLimit
from kubeproxy.modes.base import AnyMode
from kubeproxy.modes.registry import load_mode, mode_names
from kubeproxy.run.admission import WAIT_FLAG, Admission
from kubeproxy.run.confinement import confine
from kubeproxy.run.leftovers import left_modes, running_of
from kubeproxy.run.notify import take_notifier
from kubeproxy.run.prepare import prepare
from kubeproxy.run.presence import announced
from kubeproxy.run.privileges import require_privileges
from kubeproxy.run.process import Signals
from kubeproxy.run.serving import Proxy
from kubeproxy.run.workers import Workers
from kubeproxy.status.api_client import MetricObserver
from kubeproxy.status.metrics import Metrics
from kubeproxy.sync.clock import SystemClock
from kubeproxy.version import DISTRIBUTION

logger = get_logger(__name__)
_unexpected = LogLimit()


class Interruption(Struct, frozen=True):
    """What a signal that ends the process means for what is under way."""

    code: int
    message: str

    def log(self) -> None:
        """Write the last line, and everything that is still buffered."""
        if self.code:
            logger.error(None, self.message)
        else:
            logger.info(self.message)
        stop_logging()


def interruption_of(settings: Settings) -> Interruption:
    """Return what interrupting this invocation means. Only the daemon may end at any time."""
    if settings.cleanup:
        return Interruption(1, "Interrupted; clean-up may be incomplete, run it again")
    if settings.init_only:
        return Interruption(1, "Interrupted; the system is not initialized, run it again")
    return Interruption(0, "Stopped; the rules stay in the kernel")


def report_exception(_: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
    """Log an exception that reached the event loop, in one line and once in a while."""
    error, message = context.get("exception"), str(context.get("message", ""))
    frames = extract_tb(error.__traceback__) if isinstance(error, BaseException) else []
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    if _unexpected.is_due(f"{message} {where}"):
        logger.error(repr(error), "Unexpected error", detail=message, where=where)


async def run(settings: Settings, signals: Signals) -> None:
    """Run one invocation. Return for exit code 0, raise ProxyError for 1."""
    return_freed_memory()
    workers = Workers()
    asyncio.get_running_loop().set_default_executor(workers)
    if settings.write_config_to:
        _write_config(settings)
    elif settings.cleanup:
        await clean_up(mode_names())
    else:
        await _run_mode(settings, load_mode(settings.config.mode), workers, signals)


def _write_config(settings: Settings) -> None:
    try:
        write_config(settings.write_config_to, settings.config)
    except OSError as error:
        verb = "write" if error.filename is None else "open"
        place = settings.write_config_to
        raise ConfigError(f"{verb} {place}: {format_os_error(error)}") from error
    logger.info("Wrote configuration", file=settings.write_config_to)


async def clean_up(modes: tuple[str, ...]) -> None:
    """Remove everything these modes have installed, and nothing else."""
    failed = False
    for name in modes:
        for problem in await load_mode(name).cleanup():
            failed = True
            logger.error(problem, "Clean-up is incomplete", mode=name)
    if failed:
        raise KernelError("encountered an error while tearing down rules")


async def _run_mode(settings: Settings, mode: AnyMode, workers: Workers, signals: Signals) -> None:
    logger.info("Starting", distribution=DISTRIBUTION, version=settings.version, mode=mode.name)
    # First what can be wrong without having touched anything.
    require_privileges(mode.name, read_capabilities())
    notifier = take_notifier(os.environ, os.getpid())
    metrics = Metrics(mode.name)
    source = open_source(settings, metrics)
    try:
        prepared = await prepare(settings, mode, source)
        if settings.init_only:
            for family in prepared.families:
                message = "System initialized and --init-only specified"
                logger.info(message, ipFamily=family.value)
            return
        logger.info("Version info", version=settings.version)
        _adjust_oom_score(settings.config.oom_score_adj)
        admission = Admission(
            settings.config.metrics_bind_address, waits=settings.extensions.is_on(WAIT_FLAG)
        )
        await admission.look()
        if not settings.extensions.is_on("keep-privileges"):
            files = (*source.files, *_files(settings))
            modes = (mode.name, *left_modes(running_of(mode, prepared)))
            await confine(modes, files=files, workers=workers, logs=settings.log_options)
        proxy = Proxy(
            settings,
            mode,
            source=source,
            prepared=prepared,
            metrics=metrics,
            clock=SystemClock(),
            notifier=notifier,
            admission=admission,
        )
        signals.stays = proxy.begin_hand_over
        with announced(mode.name):
            await proxy.run()
    finally:
        await source.close()


def _files(settings: Settings) -> Iterator[str]:
    """Yield the files and folders that are used later, besides those of the source."""
    yield from (sys.executable, __file__)  # modules that are imported late, and the carrier's
    if settings.config_file:
        yield settings.config_file
    if place := settings.extensions.text("inspection-socket"):
        yield str(Path(place).parent)


def open_source(settings: Settings, metrics: Metrics) -> Source:
    """Return where objects come from, by the flags. Requests are counted in the metrics."""
    health_check = checked_health_check(settings)
    # What is imported here is needed for one of the two only.
    if settings.extensions.text("manifests"):
        from kubeproxy.api.manifests import ManifestSource

        return ManifestSource(Path(settings.extensions.text("manifests")), health_check)
    from kubeproxy.api.api_server import ApiServerOptions, ApiServerSource

    section = settings.config.client_connection
    options = ApiServerOptions(
        kubeconfig=section.kubeconfig,
        master=settings.master,
        content_type=section.content_type,
        qps=section.qps,
        burst=section.burst,
        streams=settings.gates.is_requested("WatchListClient"),
    )
    return ApiServerSource.open(options, MetricObserver(metrics))


def checked_health_check(settings: Settings) -> str:
    """Return --health-check. Raises ConfigError if it cannot be understood, or has no effect."""
    text = settings.extensions.text("health-check")
    if not text:
        return ""
    try:
        parse_health_check(text)
    except ValueError as error:
        raise ConfigError(f"--health-check: {error}") from None
    if not settings.extensions.text("manifests"):
        raise ConfigError(
            "--health-check is for Services of --manifests; with an API server, annotate the"
            f" Services that are to be checked: {HEALTH_CHECK_ANNOTATION}: {text}"
        )
    return text


def _adjust_oom_score(value: int) -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(str(value))
    except OSError as error:
        logger.v(2).info("Failed to apply OOMScore", err=str(error))
