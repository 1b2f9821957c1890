"""What happens when the configuration file changes while the proxy runs.

    content ──valid?──▶ another configuration? ──yes──▶ wait at random ──▶ end, to be restarted
                │                  │
                no                 no
                ▼                  ▼
        log, event, metric      go on

The configuration is never changed in a running proxy: a supervisor starts it again, with the new
file. A file that would not let it start does not end it: the proxy goes on with what it has and
watches further. Every change counts from the beginning, so a mistake that is corrected, or a
correction that is a mistake, cancels the restart that was coming.

All proxies of a cluster see a ConfigMap change within about a minute. Each waits for a random time
before it ends, so that not all lists are asked of the API server, and not all nodes are without
updates, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kubeproxy.config.command import Settings, with_content
from kubeproxy.config.watch import ConfigWatch, FileContent, is_regular_file
from kubeproxy.errors import ConfigError
from kubeproxy.logs import get_logger
from kubeproxy.status.event_series import WARNING, Reference
from kubeproxy.status.events import Recorder
from kubeproxy.status.metrics import Metrics

logger = get_logger(__name__)

UPDATED = "content of the proxy server's configuration file was updated"
"""The error with which the daemon ends because of a change."""

_MOST_TEXT = 800


class Reconfiguration:
    """Follows the configuration file of one running proxy."""

    def __init__(
        self,
        settings: Settings,
        *,
        node: Reference,
        recorder: Recorder,
        metrics: Metrics,
        restart: Callable[[str], None],
        random: Callable[[], float],
    ) -> None:
        """`restart` is called with the reason. `random` returns a number from 0 to 1."""
        self._settings = settings
        self._node = node
        self._recorder = recorder
        self._metrics = metrics
        self._restart = restart
        self._random = random
        metrics.set("kubeproxy_config_last_reload_successful", 1)

    async def run(self) -> None:
        """Follow the file until it leads to a restart. Without a file there is nothing to do."""
        path, content = self._settings.config_file, self._settings.config_content
        if content is None:
            return
        if not is_regular_file(path):
            message = "Configuration was not read from a regular file; its changes are not followed"
            logger.info(message, file=path)
            return
        with ConfigWatch(path, content) as watch:
            await self._follow(watch)
        self._restart(UPDATED)

    async def _follow(self, watch: ConfigWatch) -> None:
        """Return when the time has come to restart with what is in the file."""
        accepted: FileContent | None = None
        restart_at: float | None = None
        while True:
            try:
                async with asyncio.timeout_at(restart_at):
                    found = await watch.changed()
            except TimeoutError:
                found = watch.look()
                if found == accepted:
                    return
            # Also at the end of the delay: what changed in this moment was not judged yet.
            delay = await self._consider(found)
            accepted = None if delay is None else found
            loop = asyncio.get_running_loop()
            restart_at = None if delay is None else loop.time() + delay

    async def _consider(self, found: FileContent) -> float | None:
        """Return the seconds after which to restart with this content, or None to go on."""
        try:
            if found.content is None:
                raise ConfigError(found.problem)
            # In a thread: a mebibyte of YAML takes seconds, in which Services change.
            new = await asyncio.to_thread(with_content, self._settings, found.content)
        except Exception as error:  # nothing in a file may end a proxy that works
            text = str(error) if isinstance(error, ConfigError) else repr(error)
            self._report_invalid(text[:_MOST_TEXT])  # it may quote the whole file
            return None
        self._metrics.set("kubeproxy_config_last_reload_successful", 1)
        file = self._settings.config_file
        for note in new.early:
            if note.values:  # unknown fields, gates that will go away
                logger.info(note.message, **note.values)
        if new.is_same_configuration(self._settings):
            logger.info("Configuration file changed, but not the configuration", file=file)
            return None
        longest = self._settings.extensions.seconds("config-restart-jitter")
        delay = self._random() * max(0.0, longest)
        logger.info("Configuration file changed; restarting", file=file, after=f"{delay:.1f}s")
        return delay

    def _report_invalid(self, problem: str) -> None:
        message = "Configuration file cannot be used; going on with the configuration from before"
        logger.error(problem, message, file=self._settings.config_file)
        self._metrics.set("kubeproxy_config_last_reload_successful", 0)
        self._recorder.record(
            self._node,
            type=WARNING,
            reason="InvalidConfiguration",
            action="ReadConfiguration",
            note=f"{message}: {problem}",
        )
