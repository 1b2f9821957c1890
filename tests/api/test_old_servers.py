"""What older API servers refuse, against the small one: less is asked for, and rarely."""

from __future__ import annotations

import asyncio

import msgspec
from tests.support.reflecting import Inbox, client_of, reflecting, service
from tests.support.waiting import until

from kpctl.apiserver.small import Fault, SeenRequest, SmallApiServer
from kubeproxy.api.reflector import Reflector, ReflectorSettings
from kubeproxy.api.resources import resource_for
from kubeproxy.api.source import Kind

NO_SELECTOR = {
    "kind": "Status",
    "code": 400,
    "message": '"spec.clusterIP" is not a known field selector',
}


def selects(request: SeenRequest) -> bool:
    return "fieldSelector" in request.query


async def test_services_are_listed_without_a_selector_that_is_refused(api: SmallApiServer) -> None:
    """v1.30 has none for Services. The other requests of the same start go on without it too."""
    api.faults.extend(
        [Fault(status=400, body=msgspec.json.encode(NO_SELECTOR), applies=selects)] * 20
    )
    await api.create("services", "ns", service("a"))
    async with reflecting(api, ReflectorSettings()) as inbox:
        await until(lambda: inbox.held == {"a": "10.0.0.1"})
        await api.create("services", "ns", service("b", ip="10.0.0.2"))
        await until(lambda: "b" in inbox.held)
        assert inbox.slept == []
    assert not selects(api.requests[-1])
    assert all("labelSelector" in request.query for request in api.requests)


async def test_a_collection_that_is_absent_is_asked_for_rarely(api: SmallApiServer) -> None:
    api.faults.extend([Fault(status=404)] * 20)
    inbox = Inbox()
    async with client_of(api) as client:
        resource = resource_for(Kind.SERVICE_CIDR, "node")
        task = asyncio.create_task(Reflector(client, resource, inbox, sleep=inbox.sleep).run())
        await until(lambda: len(inbox.slept) >= 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert set(inbox.slept) == {600.0}
