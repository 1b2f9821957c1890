"""Make before break: what other modes have left goes once this mode serves, and not before.

Rules of two modes can stand at the same time: the first translation of a connection counts. So the
old ones serve until every family has synced, and are removed then. A first sync that does not come
leaves them where they are.

Removal is level-triggered: it is repeated at growing intervals, whatever was found. What could not
be removed may go later, what open connections need goes with them, and a proxy that was thought to
have ended may have written its rules once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import LogLimit
from kubeproxy.modes.base import AnyMode, Retired, Running
from kubeproxy.modes.registry import load_mode
from kubeproxy.modes.traces import find_traces
from kubeproxy.plan.conntrack import Socket
from kubeproxy.run.prepare import Prepared

logger = get_logger(__name__)

NOTICE_SECONDS = 30.0
"""A first sync that takes longer is worth a line in the log, if another mode serves meanwhile."""
RETRY_SECONDS = 30.0
LAST_PAUSE_SECONDS = 3600.0
PATIENCE_SECONDS = 86400.0
"""How long open connections of a mode that was replaced are waited for."""

ForgetFlows = Callable[[Family, frozenset[Socket]], Awaitable[object]]
"""Delete the UDP flows of a family that were sent to these places."""


def running_of(mode: AnyMode, prepared: Prepared) -> Running:
    """What runs now.

    Service addresses that the ipvs mode bound may stay for its open connections only if a
    connection of the node itself to one is masqueraded: it has that address as its source.
    """
    masquerades = (n.masquerade_all or n.detector.is_implemented for n in prepared.nodes.values())
    return Running(mode.name, tuple(prepared.backends.values()), is_patient=all(masquerades))


def left_modes(running: Running) -> frozenset[str]:
    """The modes whose leftovers will be removed, as far as is known at the start."""
    try:
        return find_traces(running)
    except KernelError as error:
        logger.error(error, "Failed to look for leftovers of other modes")
        return frozenset()


class Leftovers:
    """Removes what other modes have left."""

    def __init__(
        self,
        running: Running,
        *,
        forget_flows: ForgetFlows,
        removed: Callable[[], None] = lambda: None,
        look: Callable[[Running], frozenset[str]] = find_traces,
        load: Callable[[str], AnyMode] = load_mode,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        notice_seconds: float = NOTICE_SECONDS,
    ) -> None:
        """`removed` is called when rules were removed by which flows may have begun."""
        self._running = running
        self._forget_flows = forget_flows
        self._removed = removed
        self._look = look
        self._load = load
        self._sleep = sleep
        self._notice_seconds = notice_seconds
        self._synced = asyncio.Event()
        self._log = LogLimit()
        self._known: frozenset[str] = frozenset()
        for backend in running.backends:
            backend.make_room()

    def first_sync_done(self) -> None:
        """From now on the running mode serves alone."""
        self._synced.set()

    async def run(self) -> None:
        """Run until cancelled."""
        await self._wait_for_sync()
        waited, pause = 0.0, RETRY_SECONDS
        while True:
            found = await self._attempt(is_patient=waited < PATIENCE_SECONDS)
            if found is not None and found.connections:
                waited, pause = waited + RETRY_SECONDS, RETRY_SECONDS
            await self._sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)

    async def _wait_for_sync(self) -> None:
        try:
            async with asyncio.timeout(self._notice_seconds):
                await self._synced.wait()
        except TimeoutError:
            self._report_waiting()
            await self._synced.wait()

    def _report_waiting(self) -> None:
        try:
            modes = sorted(self._look(self._running))
        except KernelError:
            return
        if modes:
            message = "Not synced yet; until then the rules of another mode stay and serve"
            logger.info(message, modes=modes)

    async def _attempt(self, *, is_patient: bool) -> Retired | None:
        """Remove what there is. Return what remains, None if that is unknown."""
        try:
            return await self._remove(is_patient=is_patient and self._running.is_patient)
        except KernelError as error:
            self._report({"": (str(error),)})
            return None

    async def _remove(self, *, is_patient: bool) -> Retired:
        modes = self._look(self._running)
        outcomes = {name: await self._retire(name, is_patient=is_patient) for name in sorted(modes)}
        if modes - self._known:
            self._removed()
        self._known = modes
        problems = {name: found.problems for name, found in outcomes.items() if found.problems}
        # Another look, whatever the removal has reported.
        left = self._look(self._running)
        for name in left:
            if not outcomes.get(name, Retired()).connections:
                problems.setdefault(name, ("they are there again, or still",))
        for name in sorted(modes - left - problems.keys()):
            logger.info("Removed what another mode had left", mode=name)
        self._report(problems)
        return Retired(
            tuple(text for texts in problems.values() for text in texts),
            sum(found.connections for found in outcomes.values()),
        )

    async def _retire(self, name: str, *, is_patient: bool) -> Retired:
        running = self._running
        found = await self._load(name).retire(Running(running.mode, running.backends, is_patient))
        for family, places in found.untranslated.items():
            await self._forget_flows(family, places)
        if found.connections and self._log.is_due(name):
            message = "Another mode is replaced; it goes on for its open connections"
            logger.info(message, mode=name, connections=found.connections)
        return found

    def _report(self, problems: Mapping[str, tuple[str, ...]]) -> None:
        for name, texts in problems.items():
            for text in texts:
                if self._log.is_due(text):
                    logger.error(text, "Leftovers of another mode remain; trying again", mode=name)
