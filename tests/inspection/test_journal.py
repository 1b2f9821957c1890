"""What a running proxy remembers: bounded, and only what happened after the first lists."""

from __future__ import annotations

from msgspec.structs import replace
from tests.support.builders import endpoint, endpoint_slice
from tests.support.engine_kit import FakeClock

from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.inspection import journal as module
from kubeproxy.inspection.journal import Journal
from kubeproxy.inspection.types import EndpointChange
from kubeproxy.sync.report import RoundReport

WEB = ServiceName("default", "web")
REPORT = RoundReport(family=Family.IPV4, is_full=False, finished_at=5.0, duration_seconds=0.1)


def listed() -> Journal:
    journal = Journal(FakeClock(1000.0))
    journal.listed()
    return journal


def test_what_existed_at_the_start_is_no_event() -> None:
    journal = Journal(FakeClock())
    journal.service_changed(WEB, "Service changed")
    journal.slice_changed(Family.IPV4, None, endpoint_slice("default/web", [endpoint()]))
    assert journal.changed(WEB) is None
    assert not journal.endpoint_changes(Family.IPV4, WEB)


def test_a_changed_endpoint_is_shown_with_its_states_and_the_time() -> None:
    journal = listed()
    before = endpoint_slice("default/web", [endpoint("10.1.0.1"), endpoint("10.1.0.2")])
    after = endpoint_slice("default/web", [endpoint("10.1.0.1"), endpoint("10.1.0.2", ready=False)])
    journal.slice_changed(Family.IPV4, before, after)
    assert journal.endpoint_changes(Family.IPV4, WEB) == (
        EndpointChange(1000.0, "10.1.0.2:8080", "ready", "not ready"),
    )
    assert not journal.endpoint_changes(Family.IPV6, WEB)
    changed = journal.changed(WEB)
    assert changed is not None
    assert changed.event == f"EndpointSlice {after.name} changed"


def test_a_removed_slice_takes_its_endpoints_along() -> None:
    journal = listed()
    journal.slice_changed(Family.IPV4, endpoint_slice("default/web", [endpoint()]), None)
    (change,) = journal.endpoint_changes(Family.IPV4, WEB)
    assert (change.before, change.after) == ("ready", "")


def test_nothing_grows_without_bound() -> None:
    journal = listed()
    for number in range(5000):
        name = f"default/web-{number}"
        journal.slice_changed(Family.IPV4, None, endpoint_slice(name, [endpoint()]))
        journal.object_problem("Service", name, "bad")
        journal.round_finished(replace(REPORT, drifted_items=1))
    assert len(journal.rounds()) == module.MOST_ROUNDS
    assert len(journal.repairs()) == module.MOST_REPAIRS
    assert len(journal.problems()) == module.MOST_PROBLEMS
    assert (journal.round_count, journal.repair_count) == (5000, 5000)
    assert journal.changed(ServiceName("default", "web-0")) is None
    assert journal.changed(ServiceName("default", "web-4999")) is not None


def test_a_repair_is_remembered_with_its_cause_and_its_lines() -> None:
    journal = listed()
    drifted = replace(REPORT, drifted_items=2, drift="by nft", drifted_lines=("+ x",))
    journal.round_finished(drifted)
    journal.round_finished(REPORT)
    (repair,) = journal.repairs()
    assert (repair.cause, repair.items, repair.lines) == ("by nft", 2, ("+ x",))


def test_what_changed_since_a_revision_is_named_once() -> None:
    journal = listed()
    before = journal.revision
    for name in ("a", "b", "a"):
        journal.service_changed(ServiceName("default", name), "Service changed")
    between = journal.revision
    journal.service_changed(WEB, "Service changed")
    found = journal.changed_since(before)
    assert found is not None
    assert sorted(name.name for name in found) == ["a", "b", "web"]
    assert journal.changed_since(between) == (WEB,)
    assert journal.changed_since(journal.revision) == ()


def test_a_revision_from_before_the_lists_or_of_forgotten_changes_means_everything() -> None:
    journal = Journal(FakeClock())
    early = journal.revision
    journal.listed()
    start = journal.revision
    assert journal.changed_since(early) is None
    for number in range(module.MOST_SERVICES):
        journal.service_changed(ServiceName("default", f"web-{number}"), "Service changed")
    found = journal.changed_since(start)
    assert found is not None
    assert len(found) == module.MOST_SERVICES
    journal.service_changed(WEB, "Service changed")
    assert journal.changed_since(start) is None
    assert journal.changed_since(journal.revision + 1) is None


def test_what_checks_find_is_among_the_changes_of_endpoints() -> None:
    journal = listed()
    journal.endpoint_checked(Family.IPV4, WEB, "10.1.0.1:80", "connection refused")
    journal.endpoint_checked(Family.IPV4, WEB, "10.1.0.1:80", "")
    assert [(c.before, c.after) for c in journal.endpoint_changes(Family.IPV4, WEB)] == [
        ("passing", "failing: connection refused"),
        ("failing", "passing"),
    ]
    changed = journal.changed(WEB)
    assert changed is not None
    assert changed.event == "endpoint 10.1.0.1:80 passes its health check"
    assert journal.services_with_endpoint_changes() == {WEB}
    assert not journal.endpoint_changes(Family.IPV6, WEB)


def test_a_check_that_flaps_for_ever_fills_no_memory() -> None:
    journal = listed()
    for number in range(10_000):
        journal.endpoint_checked(Family.IPV4, WEB, "10.1.0.1:80", "x" * (number % 2))
    assert len(journal.endpoint_changes(Family.IPV4, WEB)) == module.MOST_CHECKED
