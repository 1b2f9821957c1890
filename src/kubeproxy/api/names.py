"""Addresses of host names that manifests name as backends, looked up again and again.

Promises: an answer that says nothing (no such name, no server, no address that can be used) changes
nothing, so that a name which stops resolving keeps its last addresses; that is logged once, and so
is the end of it. The order of addresses in an answer means nothing. No look-up holds up the event
loop, the end of the process, or another name for long: each has a thread of its own that nothing
waits for at the end, and one that hangs is the only one for its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Collection, Mapping
from threading import Thread

from msgspec import Struct

from kubeproxy.api.short_form import why_unusable
from kubeproxy.facts.address import parse_ip
from kubeproxy.logs import get_logger

logger = get_logger(__name__)

INTERVAL_SECONDS = 30.0
"""How often names are looked up again. The time to live of an answer is not known here: the host's
resolver and its caches keep to it."""
LIMIT_SECONDS = 30.0
"""How long a look-up may keep others waiting. What the resolver says later does not count."""
MOST_AT_ONCE = 4
MOST_ADDRESSES = 256
"""Of one name. An answer may have thousands."""

LookUp = Callable[[str], tuple[str, ...]]


class _Known(Struct):
    addresses: tuple[str, ...] = ()
    failure: str = ""
    is_tried: bool = False


def look_up(name: str) -> tuple[str, ...]:
    """Return the usable addresses of a name, sorted. Blocks. Raises OSError if there is none."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is too long
        raise OSError(f"not a name that can be looked up: {error}") from error
    parsed = (parse_ip(str(address[0])) for *_, address in answers)
    found = sorted({each[1] for each in parsed if each is not None and _is_usable(each[1])})
    if not found:
        raise OSError("the answer has no address that can be used")
    return tuple(found[:MOST_ADDRESSES])


def _is_usable(address: str) -> bool:
    """Whether a name may lead there. A name server may be of other people.

    Link-local addresses are as the API refuses them for endpoints: at 169.254.169.254 clouds hand
    out the host's credentials.
    """
    return not (why_unusable(address) or ipaddress.ip_address(address).is_link_local)


class Names:
    """The names that are wanted now, and what is known of them."""

    def __init__(
        self,
        look_up: LookUp = look_up,
        interval_seconds: float = INTERVAL_SECONDS,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self._look_up = look_up
        self._interval_seconds = interval_seconds
        self._limit_seconds = limit_seconds
        self._under_way: set[str] = set()
        """Names with a thread, whether or not anything waits for it."""
        self._known: dict[str, _Known] = {}
        self._new = asyncio.Event()
        self._settled = asyncio.Event()
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self.changed = asyncio.Event()
        """Set when an address has changed; the source clears it."""

    @property
    def resolved(self) -> Mapping[str, tuple[str, ...]]:
        return {name: known.addresses for name, known in self._known.items() if known.addresses}

    @property
    def failures(self) -> Mapping[str, str]:
        """The names that do not resolve now, with the reason."""
        return {name: known.failure for name, known in self._known.items() if known.failure}

    def want(self, names: Collection[str]) -> None:
        """Look up these names from now on, and no others."""
        self._known = {name: self._known.get(name, _Known()) for name in sorted(names)}
        if not self._are_all_tried:
            self._settled.clear()
            self._new.set()

    @property
    def _are_all_tried(self) -> bool:
        return all(known.is_tried for known in self._known.values())

    async def settle(self, limit_seconds: float) -> None:
        """Wait until every name was looked up once, but no longer than this."""
        if self._are_all_tried:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_seconds):
                await self._settled.wait()

    async def run(self) -> None:
        """Look up names until cancelled."""
        while True:
            self._new.clear()
            await asyncio.gather(*(self._refresh(name) for name in self._known))
            if self._are_all_tried:
                self._settled.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_seconds if self._known else None):
                    await self._new.wait()

    async def _refresh(self, name: str) -> None:
        if name in self._under_way:
            return  # it hangs, and another thread would, too
        async with self._places:
            try:
                async with asyncio.timeout(self._limit_seconds):
                    addresses = await self._in_thread(name)
            except TimeoutError:
                self._failed(name, OSError(f"no answer within {self._limit_seconds:g} s"))
            except Exception as error:  # whatever an answer makes the resolver raise
                self._failed(name, error)
            else:
                self._found(name, addresses)

    def _found(self, name: str, addresses: tuple[str, ...]) -> None:
        known = self._known.get(name)
        if known is None:
            return  # not wanted any more
        if known.failure:
            logger.info("Host name resolves again", name=name, addresses=list(addresses[:10]))
        if known.addresses != addresses:
            self.changed.set()
        known.addresses, known.failure, known.is_tried = addresses, "", True

    def _failed(self, name: str, error: Exception) -> None:
        known = self._known.get(name)
        if known is None:
            return
        if not known.failure:
            logger.error(
                error,
                "Host name does not resolve; its last addresses stay"
                if known.addresses
                else "Host name does not resolve; it has no addresses yet",
                name=name,
            )
        known.failure, known.is_tried = str(error) or type(error).__name__, True

    async def _in_thread(self, name: str) -> tuple[str, ...]:
        """Look up a name. Raises what that raises, and RuntimeError without a thread."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[str, ...]] = loop.create_future()

        def end(result: tuple[str, ...] | None, error: Exception | None) -> None:
            self._under_way.discard(name)
            if outcome.done():
                return  # nothing waits any more
            if result is not None:
                outcome.set_result(result)
            elif error is not None:
                outcome.set_exception(error)

        def work() -> None:
            result: tuple[str, ...] | None = None
            failure: Exception | None = None
            try:
                result = self._look_up(name)
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end, result, failure)

        Thread(target=work, name="look-up", daemon=True).start()
        self._under_way.add(name)
        return await outcome
