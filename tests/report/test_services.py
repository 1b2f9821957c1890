"""Services as they are programmed: `kpctl get`."""

from __future__ import annotations

from tests.support.builders import endpoint, endpoint_slice, service
from tests.support.snapshots import NOW, held, snapshot

from kpctl.report.services import programmed, rows
from kpctl.snapshot.target import Target, parse_target
from kpctl.snapshot.types import Snapshot
from kubeproxy.inspection.types import Changed, Refused

PODS = [endpoint(f"10.244.1.{n}") for n in range(1, 10)]


def cells(found: Snapshot, *, is_wide: bool = False) -> tuple[str, ...]:
    (row,) = rows(programmed(found, Target()), found, is_wide=is_wide)
    return row


def test_a_row_has_the_last_change_and_its_event() -> None:
    changed = Changed(NOW - 120, "EndpointSlice web-1 changed")
    assert cells(snapshot(held(service(), changed=changed)))[3] == (
        "2 min ago: EndpointSlice web-1 changed"
    )
    assert cells(snapshot(held(service())))[3] == "not lately (started 1 h ago)"


def test_many_endpoints_are_shortened_unless_all_are_wanted() -> None:
    found = snapshot(held(service(), endpoint_slice(endpoints=PODS)))
    assert cells(found)[2].endswith("and 3 more")
    assert cells(found, is_wide=True)[2].count("\n") == 8


def test_what_is_refused_stands_first() -> None:
    refused = Refused("default/web:http/TCP", "no space left")
    assert cells(snapshot(held(service(), refused=[refused])))[1].startswith("REFUSED: no space")


def test_a_pod_has_its_services_ready_or_not() -> None:
    sick = endpoint("10.244.7.7", ready=False, serving=False)
    other = service("shop/api", cluster_ip="10.96.0.11")
    found = snapshot(held(service(), endpoint_slice(endpoints=[sick])), held(other))
    assert [r.service_port for r in programmed(found, Target(), "10.244.7.7")] == [
        "default/web:http"
    ]
    assert not programmed(found, parse_target("shop/api"), "10.244.7.7")
