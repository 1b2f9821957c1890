"""One invocation of the daemon after its flags are parsed, from beginning to end.

write the configuration | clean up | prepare the host (and stop, with --init-only) | serve
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from kubeproxy.config.command import Settings
from kubeproxy.config.write import write_config
from kubeproxy.errors import ConfigError, KernelError
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import AnyMode
from kubeproxy.modes.registry import load_mode, mode_names
from kubeproxy.run.origin import ManifestOrigin, Origin
from kubeproxy.run.prepare import prepare
from kubeproxy.run.serving import Proxy
from kubeproxy.sync.clock import SystemClock

logger = get_logger(__name__)


async def run(settings: Settings) -> None:
    """Returns for exit code 0, raises ProxyError for 1."""
    if settings.write_config_to:
        _write_config(settings)
    elif settings.cleanup:
        await clean_up(mode_names())
    else:
        await _run_mode(settings, load_mode(settings.config.mode))


def _write_config(settings: Settings) -> None:
    try:
        write_config(settings.write_config_to, settings.config)
    except OSError as error:
        raise ConfigError(f"open {error.filename}: {(error.strerror or '').lower()}") from error
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


async def _run_mode(settings: Settings, mode: AnyMode) -> None:
    await remove_leftovers(mode)
    origin = await open_origin(settings)
    try:
        prepared = await prepare(settings, mode, origin)
        if settings.init_only:
            for family in prepared.families:
                message = "System initialized and --init-only specified"
                logger.info(message, ipFamily=family.value)
            return
        logger.info("Version info", version=settings.version)
        _adjust_oom_score(settings.config.oom_score_adj)
        proxy = Proxy(settings, mode, origin, prepared, SystemClock())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, proxy.stop)
        await proxy.run()
        logger.info("Stopped; the rules stay in the kernel")
    finally:
        await origin.close()


async def remove_leftovers(mode: AnyMode) -> None:
    """Of other modes; best effort: a leftover that stays is told, not fatal."""
    for name in mode.leftovers_of:
        for problem in await load_mode(name).cleanup():
            logger.error(problem, "Leftovers of another mode remain", mode=name)


async def open_origin(settings: Settings) -> Origin:
    """Where objects come from, by the flags."""
    if settings.extensions.text("manifests"):
        return ManifestOrigin(Path(settings.extensions.text("manifests")))
    from kubeproxy.api.origin import ApiOrigin  # aiohttp and TLS are not needed for manifests

    return ApiOrigin.open(settings)


def _adjust_oom_score(value: int) -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(str(value))
    except OSError as error:
        logger.v(2).info("Failed to apply OOMScore", err=str(error))
