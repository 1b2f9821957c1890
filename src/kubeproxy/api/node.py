"""Finding our own Node at the start, with upstream's patience.

The first answer is waited for without limit: nothing can be done without it. Then a Node that is
missing or has no address yet gets 30 seconds, and, where its pod networks are needed, another five
minutes. What each look means is decided by `NodeWait`, which knows no clock and no network.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from enum import Enum

import msgspec

from kubeproxy.api.backoff import Backoff, BackoffPolicy
from kubeproxy.api.decode import decode_node_ips, decode_pod_cidrs
from kubeproxy.api.objects import Node
from kubeproxy.api.reflector import Opener
from kubeproxy.api.resources import resource_for
from kubeproxy.api.source import Kind
from kubeproxy.api.transport import Request
from kubeproxy.errors import ApiError
from kubeproxy.logs import get_logger

logger = get_logger(__name__)

LOOK_SECONDS = 1.0
ADDRESS_SECONDS = 30.0
POD_CIDR_SECONDS = 300.0


class Verdict(Enum):
    """What to do after a look."""

    LOOK_AGAIN = "look again"
    GO_ON = "go on"
    GIVE_UP = "give up"


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """A verdict, and what the operator must be told with it."""

    verdict: Verdict
    message: str = ""


class NodeWait:
    """Judges one look at the Node after the other."""

    def __init__(self, name: str, *, needs_pod_cidrs: bool) -> None:
        self._name = name
        self._needs_pod_cidrs = needs_pod_cidrs
        self._since: float | None = None
        self._is_addressed = False

    def judge(self, node: Node | None, now: float) -> tuple[Judgement, ...]:
        """What this look means; the last judgement counts, those before it are only told."""
        if self._since is None:
            self._since = now
        if not self._is_addressed:
            first = self._judge_addresses(node, now - self._since)
            if first.verdict is Verdict.LOOK_AGAIN or not self._needs_pod_cidrs:
                return (first,)
            self._is_addressed, self._since = True, now
            return (first, self._judge_pod_cidrs(node, 0.0))
        return (self._judge_pod_cidrs(node, now - self._since),)

    def _judge_addresses(self, node: Node | None, waited: float) -> Judgement:
        if node is not None and decode_node_ips(node):
            return Judgement(Verdict.GO_ON)
        if waited < ADDRESS_SECONDS:
            return Judgement(Verdict.LOOK_AGAIN)
        what = "to exist" if node is None else "to be assigned IPs"
        return Judgement(Verdict.GO_ON, f"Timed out waiting for node {what}")

    def _judge_pod_cidrs(self, node: Node | None, waited: float) -> Judgement:
        if node is not None and decode_pod_cidrs(node):
            return Judgement(Verdict.GO_ON)
        if waited < POD_CIDR_SECONDS:
            return Judgement(Verdict.LOOK_AGAIN)
        if node is None:
            return Judgement(Verdict.GIVE_UP, f'timeout waiting for node "{self._name}" to exist')
        return Judgement(
            Verdict.GIVE_UP, f'timeout waiting for PodCIDR allocation on node "{self._name}"'
        )


class _Nodes(msgspec.Struct, frozen=True):
    items: tuple[Node, ...] | None = None


class NodeFinder:
    """Looks at the API server until a verdict falls."""

    def __init__(
        self,
        client: Opener,
        *,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._clock = clock
        self._rand = rand
        self._sleep = sleep

    async def find(self, name: str, *, needs_pod_cidrs: bool) -> Node | None:
        """The Node, or None if it does not come; raises `ApiError` where that is fatal."""
        wait = NodeWait(name, needs_pod_cidrs=needs_pod_cidrs)
        while True:
            node = await self._look(name)
            for judgement in wait.judge(node, self._clock()):
                if judgement.verdict is Verdict.GIVE_UP:
                    raise ApiError(judgement.message)
                if judgement.message:
                    logger.error(None, judgement.message, node=name)
            if judgement.verdict is Verdict.GO_ON:
                return node
            await self._sleep(LOOK_SECONDS)

    async def _look(self, name: str) -> Node | None:
        """One answer, however long the server takes to give it."""
        resource = resource_for(Kind.NODE, name)
        query = (*resource.selectors, ("resourceVersion", "0"))
        backoff = Backoff(BackoffPolicy())
        while True:
            try:
                body = await self._client.read(Request("GET", resource.path, query=query))
                found = msgspec.json.decode(body, type=_Nodes).items
                return found[0] if found else None
            except (ApiError, msgspec.DecodeError) as error:
                logger.error(error, "Failed to look up the node, trying again", node=name)
            await self._sleep(backoff.fail(self._clock(), self._rand()))
