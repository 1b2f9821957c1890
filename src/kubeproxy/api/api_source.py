"""The API server as a source of objects: four collections, one inbox.

Each collection is kept by a reflector of its own; they share the client and with it rate limit and
connections. Services and slices are not ordered among each other: the receiver waits for both
`Synced` before it acts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from kubeproxy.api import source, watch
from kubeproxy.api.reflector import DEFAULTS, Opener, Reflector, ReflectorSettings
from kubeproxy.api.resources import resource_for
from kubeproxy.api.source import Inbox, Kind
from kubeproxy.api.watch import Tracked
from kubeproxy.logs import get_logger

logger = get_logger(__name__)


class ApiSource:
    """A `Source` fed by an API server."""

    def __init__(
        self,
        client: Opener,
        *,
        node_name: str,
        kinds: Iterable[Kind] = tuple(Kind),
        settings: ReflectorSettings = DEFAULTS,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._kinds = tuple(kinds)
        self._settings = settings

    async def run(self, inbox: Inbox) -> None:
        """Deliver until cancelled; trouble of one kind does not hold up the others."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(self._reflector(kind, inbox).run(), name=f"watch {kind.value}")

    def _reflector(self, kind: Kind, inbox: Inbox) -> Reflector[Tracked]:
        return Reflector(
            self._client,
            resource_for(kind, self._node_name),
            translator(kind, inbox),
            settings=self._settings,
        )


def translator(kind: Kind, inbox: Inbox) -> Callable[[watch.Event[Tracked]], None]:
    """Events of one collection → messages to the inbox."""
    object_type = kind.object_type

    def deliver(event: watch.Event[Tracked]) -> None:
        match event:
            case watch.Upsert():
                assert isinstance(event.object, object_type)
                inbox.send(source.Upsert(kind, event.object))
            case watch.Delete():
                inbox.send(source.Delete(kind, event.key.namespace, event.key.name))
            case watch.Synced():
                logger.v(2).info("Caches populated", type=kind.value)
                inbox.send(source.Synced(kind))
            case watch.Undecodable():
                inbox.send(source.Undecodable(kind, str(event.key), event.reason))
            case _:
                pass

    return deliver
