"""Finding our own Node at the start, waiting as long as upstream does.

The first response is waited for without limit, since nothing can be done without it. Then a Node
that is missing or has no address yet gets 30 seconds, and, where its pod networks are needed,
another five minutes. What a look-up means is decided by `NodeWait`, which has no clock and no I/O.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from enum import Enum

import msgspec

from kubeproxy.api.backoff import Backoff, BackoffPolicy
from kubeproxy.api.client import ApiClient
from kubeproxy.api.decode import decode_node_ips, decode_pod_cidrs
from kubeproxy.api.json_text import NotJson, parse_json
from kubeproxy.api.objects import Node
from kubeproxy.api.resources import resource_for
from kubeproxy.api.source import Kind
from kubeproxy.api.transport import Request
from kubeproxy.errors import ApiError
from kubeproxy.logs import get_logger

logger = get_logger(__name__)

LOOKUP_INTERVAL_SECONDS = 1.0
ADDRESS_SECONDS = 30.0
POD_CIDR_SECONDS = 300.0


class NextStep(Enum):
    """What to do after a look-up."""

    RETRY = "retry"
    PROCEED = "proceed"
    GIVE_UP = "give up"


class NodeDecision(msgspec.Struct, frozen=True, gc=False):
    """What to do next, and the message for the operator that goes with it."""

    step: NextStep
    message: str = ""


class NodeWait:
    """Decides after each look-up of the Node whether to wait on."""

    def __init__(self, name: str, *, needs_pod_cidrs: bool) -> None:
        self._name = name
        self._needs_pod_cidrs = needs_pod_cidrs
        self._since: float | None = None
        self._is_addressed = False

    def decide(self, node: Node | None, now: float) -> tuple[NodeDecision, ...]:
        """Return what this look-up means.

        The last decision counts. One before it ends the wait for addresses and has a message at
        most.
        """
        if self._since is None:
            self._since = now
        if not self._is_addressed:
            first = self._decide_addresses(node, now - self._since)
            if first.step is NextStep.RETRY or not self._needs_pod_cidrs:
                return (first,)
            self._is_addressed, self._since = True, now
            return (first, self._decide_pod_cidrs(node, 0.0))
        return (self._decide_pod_cidrs(node, now - self._since),)

    def _decide_addresses(self, node: Node | None, waited: float) -> NodeDecision:
        if node is not None and decode_node_ips(node):
            return NodeDecision(NextStep.PROCEED)
        if waited < ADDRESS_SECONDS:
            return NodeDecision(NextStep.RETRY)
        what = "to exist" if node is None else "to be assigned IPs"
        return NodeDecision(NextStep.PROCEED, f"Timed out waiting for node {what}")

    def _decide_pod_cidrs(self, node: Node | None, waited: float) -> NodeDecision:
        if node is not None and decode_pod_cidrs(node):
            return NodeDecision(NextStep.PROCEED)
        if waited < POD_CIDR_SECONDS:
            return NodeDecision(NextStep.RETRY)
        if node is None:
            return NodeDecision(
                NextStep.GIVE_UP, f'timeout waiting for node "{self._name}" to exist'
            )
        return NodeDecision(
            NextStep.GIVE_UP, f'timeout waiting for PodCIDR allocation on node "{self._name}"'
        )


class _Nodes(msgspec.Struct, frozen=True):
    kind: str = ""
    items: tuple[Node, ...] | None = None


_NODES = msgspec.json.Decoder(_Nodes)


class NodeFinder:
    """Looks the Node up at the API server until it is found or given up."""

    def __init__(
        self,
        client: ApiClient,
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
        """Return the Node, or None if it does not appear. Raises `ApiError` if that is fatal."""
        wait = NodeWait(name, needs_pod_cidrs=needs_pod_cidrs)
        while True:
            node = await self._look_up(name)
            for decision in wait.decide(node, self._clock()):
                if decision.step is NextStep.GIVE_UP:
                    raise ApiError(decision.message)
                if decision.message:
                    logger.error(None, decision.message, node=name)
            if decision.step is NextStep.PROCEED:
                return node
            await self._sleep(LOOKUP_INTERVAL_SECONDS)

    async def _look_up(self, name: str) -> Node | None:
        """Return the Node as it is now, or None. Retries until the server responds."""
        resource = resource_for(Kind.NODE, name)
        query = (*resource.selectors, ("resourceVersion", "0"))
        backoff = Backoff(BackoffPolicy())
        while True:
            try:
                body = await self._client.read(Request("GET", resource.path, query=query))
                found = parse_json(_NODES, body).value
                if found.kind != "NodeList":
                    raise NotJson(f"the answer is no NodeList, its kind is {found.kind[:80]!r}")
                return found.items[0] if found.items else None
            except (ApiError, NotJson) as error:
                logger.error(error, "Failed to look up the node, trying again", node=name)
            await self._sleep(backoff.fail(self._clock(), self._rand()))
