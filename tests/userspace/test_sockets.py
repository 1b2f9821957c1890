"""The sink of sockets: binding, claims, a carrier that dies, and what is learned."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from pathlib import Path

import pytest
from tests.support.loopback import free_port
from tests.support.userspace_kit import HERE, IDLE_SECONDS, Proxy, Servers, listener, running
from tests.support.waiting import LIMIT_SECONDS, until, within_limit

from kubeproxy.errors import Drifted, Rejected
from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.modes.base import Change, OwnedChange
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.items import Claim, Uncarried
from kubeproxy.modes.userspace.sinks.ports import PortRange
from kubeproxy.modes.userspace.sinks.supervisor import Supervisor

FIRST = ServicePortId("default", "a", "", Protocol.TCP)
SECOND = ServicePortId("default", "b", "", Protocol.TCP)


def claim_change(
    claim: Claim, old: ServicePortId | None, new: ServicePortId | None
) -> Change[Claim, ServicePortId]:
    return OwnedChange(new or old, claim, old, new)


async def test_what_is_bound_is_what_is_read(proxy: Proxy) -> None:
    claim = Claim(HERE, free_port(), Protocol.TCP)
    await proxy.serve([])
    await proxy.apply(claim_change(claim, None, FIRST))
    assert await proxy.sink.read() == {listener(): Balance(()), claim: FIRST}
    await proxy.stop()
    await proxy.apply(claim_change(claim, FIRST, None))
    assert await proxy.sink.read() == {}


async def test_binding_teaches_ports_and_unsettles_owners_once(proxy: Proxy) -> None:
    port = await proxy.serve([])
    assert proxy.sink.learned.ports == {listener(): port}
    assert set(proxy.sink.take_unsettled()) == {listener().owner}
    await proxy.serve([], affinity_seconds=5)
    assert not proxy.sink.take_unsettled()
    await proxy.stop()
    assert proxy.sink.learned.ports == {}


async def test_ports_come_from_the_range_and_go_back_to_it() -> None:
    """One that another program has is skipped, and is not lost."""
    first = free_port(neighbours=2)
    async with running(PortRange(first, first + 1)) as proxy:
        with socket.socket() as taken:
            taken.bind((HERE, first))
            taken.listen()
            assert await proxy.serve([], name="one") == first + 1
            with pytest.raises(Rejected, match="no remaining ports left"):
                await proxy.serve([], name="two")
        assert await proxy.serve([], name="two") == first
        await proxy.stop("one")
        assert await proxy.serve([], name="three") == first + 1


async def test_a_batch_that_cannot_be_bound_leaves_nothing_behind() -> None:
    only = free_port(neighbours=2)
    changes = tuple(
        OwnedChange(item.owner, item, None, Balance(())) for item in (listener("a"), listener("b"))
    )
    async with running(PortRange(only, only)) as proxy:
        with pytest.raises(Rejected):
            await proxy.apply(*changes)
        assert await proxy.sink.read() == {}
        assert await proxy.serve([], name="c") == only


async def test_a_claimed_port_is_held_and_refuses_connections(proxy: Proxy) -> None:
    """No other program can take it, and no client hangs in a queue that is never read."""
    claim = Claim(HERE, free_port(), Protocol.TCP)
    await proxy.apply(claim_change(claim, None, FIRST))
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HERE, claim.port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, claim.port), timeout=LIMIT_SECONDS)


async def test_a_claim_passes_to_another_owner_without_a_gap(proxy: Proxy) -> None:
    """Both are rendered again: one loses its portal, the other gains it."""
    claim = Claim(HERE, free_port(), Protocol.TCP)
    await proxy.apply(claim_change(claim, None, SECOND))
    proxy.sink.take_unsettled()
    await proxy.apply(claim_change(claim, SECOND, FIRST))
    assert set(proxy.sink.take_unsettled()) == {FIRST, SECOND}
    assert proxy.sink.learned.claims == {claim: FIRST}


async def test_a_port_in_use_elsewhere_is_logged_and_retried(proxy: Proxy) -> None:
    """It is no reason to fail a round, but the portal stays closed."""
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        claim = Claim(HERE, int(taken.getsockname()[1]), Protocol.TCP)
        await proxy.apply(claim_change(claim, None, FIRST))
        assert proxy.logged[0].text == (
            f"Port conflict detected on port {HERE}:{claim.port}/TCP: Address already in use"
        )
        assert proxy.sink.learned.claims == {}
        assert not proxy.sink.retry_refused()
    assert proxy.sink.retry_refused()
    assert proxy.sink.learned.claims == {claim: FIRST}
    assert set(proxy.sink.take_unsettled()) == {FIRST}


async def test_a_refused_claim_that_is_given_up_is_not_retried(proxy: Proxy) -> None:
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        claim = Claim(HERE, int(taken.getsockname()[1]), Protocol.TCP)
        await proxy.apply(claim_change(claim, None, FIRST))
        await proxy.apply(claim_change(claim, FIRST, None))
    assert not proxy.sink.retry_refused()
    assert proxy.sink.learned.claims == {}


async def test_a_service_port_that_cannot_be_carried_is_logged_once(proxy: Proxy) -> None:
    """It is read back, so that a full sync does not log it again."""
    item = Uncarried(FIRST)
    await proxy.apply(OwnedChange(FIRST, item, None, "no way"))
    assert [(message.text, message.service) for message in proxy.logged] == [
        ("no way", "default/a/TCP")
    ]
    assert await proxy.sink.read() == {item: "no way"}
    await proxy.apply(OwnedChange(FIRST, item, "no way", None))
    assert await proxy.sink.read() == {}


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection(HERE, port)
    received = await reader.read()
    writer.close()
    return received


async def kill_carrier(proxy: Proxy) -> None:
    pid = proxy.sink.supervisor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await proxy.sink.supervisor.wait_exited()


async def test_a_new_carrier_goes_on_with_the_same_ports(proxy: Proxy, servers: Servers) -> None:
    port = await proxy.serve([await servers.naming("a")])
    await kill_carrier(proxy)
    await proxy.sink.ensure_carrier()
    assert await ask(port) == b"a"


async def test_a_change_finds_a_dead_carrier_and_starts_another(
    proxy: Proxy, servers: Servers
) -> None:
    """What changed and what was there before are both served."""
    port = await proxy.serve([await servers.naming("a")])
    await kill_carrier(proxy)
    other = await proxy.serve([await servers.naming("b")], name="other")
    assert (await ask(port), await ask(other)) == (b"a", b"b")


async def test_a_stuck_carrier_is_killed() -> None:
    """A process that is stopped does not even notice that the control socket is closed."""
    supervisor = Supervisor(IDLE_SECONDS, lambda message: None)
    await supervisor.start()
    pid = supervisor.pid
    assert pid is not None
    await supervisor.execute([])
    os.kill(pid, signal.SIGSTOP)
    # Short only from here on: how long a process takes to start says nothing about this.
    supervisor.reply_timeout_seconds = 0.2
    with pytest.raises(Drifted, match="did not answer within"):
        await supervisor.execute([])
    assert not supervisor.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_carrier_that_starts_slowly_is_waited_for(
    slow_start: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the carrier is not killed, or the next one would start as slowly."""
    caplog.set_level(logging.INFO, "kubeproxy")
    supervisor = Supervisor(IDLE_SECONDS, lambda message: None, reminder_seconds=0.01)
    await supervisor.start()
    pid = supervisor.pid
    asked = asyncio.create_task(supervisor.execute([]))
    await until(lambda: caplog.text.count("has not replied since its start; waiting") > 1)
    assert not asked.done()
    slow_start.touch()
    await within_limit(asked)
    assert (supervisor.is_running, supervisor.pid) == (True, pid)
    await supervisor.stop()


async def test_a_carrier_that_ends_while_it_starts_is_not_waited_for(slow_start: Path) -> None:
    supervisor = Supervisor(IDLE_SECONDS, lambda message: None)
    await supervisor.start()
    asked = asyncio.create_task(supervisor.execute([]))
    os.kill(supervisor.pid or -1, signal.SIGKILL)
    with pytest.raises(Drifted, match="is gone"):
        await within_limit(asked)


async def test_the_carrier_ends_with_the_proxy(proxy: Proxy) -> None:
    await proxy.serve([])
    pid = proxy.sink.supervisor.pid
    await proxy.sink.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid or -1, 0)
