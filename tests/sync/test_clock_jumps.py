"""Wall time that is set forward or back changes no decision; only what is shown of it."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, endpoint_slice, port, service
from tests.support.engine_rig import Rig

from kubeproxy.errors import Busy
from kubeproxy.facts.ids import Protocol
from kubeproxy.sync.engine import FULL_SYNC_SECONDS

DAY = 86400.0


@pytest.mark.parametrize("jump", [DAY, -DAY])
async def test_rounds_and_full_reads_come_by_steady_time(jump: float) -> None:
    rig = Rig()
    rig.fill()
    await rig.engine.round()
    rig.clock.wall_offset = jump
    rig.fill(2)
    report = await rig.engine.round()
    assert report.is_success
    assert (report.is_full, report.duration_seconds) == (False, 0)
    rig.clock.advance(FULL_SYNC_SECONDS)
    assert (await rig.engine.round()).is_full


@pytest.mark.parametrize("jump", [DAY, -DAY])
async def test_what_waits_for_a_retry_waits_by_steady_time(jump: float) -> None:
    """Refused owners, and stale flows that could not be looked for."""
    rig = Rig()
    dns = service("default/web-0", cluster_ip="10.96.0.1",
                  ports=[port(53, name="dns", protocol=Protocol.UDP)])  # fmt: skip
    rig.store.set_service(dns)
    rig.conntrack.error = "No buffer space available"
    await rig.engine.round()
    rig.kernel.refuse = lambda change: getattr(change.item, "address", "") == "10.96.0.9"
    rig.store.set_service(service("default/bad", cluster_ip="10.96.0.9"))
    await rig.flows.clean()
    assert (await rig.engine.round()).refused
    rig.clock.wall_offset = jump
    rig.conntrack.error, rig.kernel.refuse = "", lambda _: False
    await rig.flows.clean()
    await rig.engine.round()
    assert (rig.engine.flows_owed, len(rig.engine.refusals())) == (1, 1)
    rig.clock.advance(1)
    await rig.flows.clean()
    await rig.engine.round()
    assert (rig.engine.flows_owed, len(rig.engine.refusals())) == (0, 0)


async def test_a_latency_is_never_negative() -> None:
    """A counter of seconds that falls would look like a restart."""
    rig = Rig()
    rig.fill()
    rig.kernel.fail = Busy("lock")
    slice_ = endpoint_slice("default/web-0", [endpoint()], slice_name="slice-0")
    rig.store.set_slice(slice_, trigger_time=rig.clock.time())
    rig.store.set_slice(endpoint_slice("default/web-0", [], slice_name="slice-0"),
                        trigger_time=rig.clock.time())  # fmt: skip
    await rig.engine.round()
    rig.kernel.fail = None
    rig.clock.wall_offset = -DAY
    latencies = (await rig.engine.round()).programming_latencies
    assert latencies and set(latencies) == {0.0}
