"""The store compares every event with what it holds."""

from __future__ import annotations

from tests.support.builders import endpoint, endpoint_slice, service

from kubeproxy.facts.ids import ServiceName
from kubeproxy.facts.store import Store

WEB = ServiceName("default", "web")


def test_an_equal_object_is_no_change() -> None:
    store = Store()
    assert store.set_service(service())
    assert not store.set_service(service())
    assert store.set_slice(endpoint_slice(endpoints=[endpoint()]))
    assert not store.set_slice(endpoint_slice(endpoints=[endpoint()]))


def test_a_delete_of_something_unknown_is_no_change() -> None:
    store = Store()
    assert not store.delete_service(WEB)
    assert not store.delete_slice("default", "web-1")
    assert not store.is_dirty


def test_add_and_delete_before_a_round_cancel_out() -> None:
    store = Store()
    store.set_service(service())
    store.delete_service(WEB)
    assert store.service_changes_pending == 0
    assert store.take_dirty().services == frozenset()


def test_an_update_twice_remembers_the_state_before_the_first() -> None:
    store = Store()
    store.set_service(service())
    store.take_dirty()
    store.set_service(service(cluster_ip="10.96.0.11"))
    store.set_service(service(cluster_ip="10.96.0.12"))
    assert store.service_changes_pending == 1
    store.set_service(service())
    assert store.service_changes_pending == 0


def test_a_slice_that_changes_its_service_leaves_the_old_one() -> None:
    store = Store()
    store.set_slice(endpoint_slice("default/web", [endpoint()]))
    store.take_dirty()
    store.set_slice(endpoint_slice("default/api", [endpoint()]))
    assert store.endpoints(WEB) == {}
    assert store.take_dirty().services == {WEB, ServiceName("default", "api")}


def test_trigger_times_wait_for_the_round_and_are_forgotten_on_removal() -> None:
    store = Store()
    store.set_slice(endpoint_slice(endpoints=[endpoint()]), trigger_time=5.0)
    store.set_slice(endpoint_slice(endpoints=[]), trigger_time=6.0)
    assert store.take_dirty().trigger_times == {WEB: (5.0, 6.0)}
    store.set_slice(endpoint_slice(endpoints=[endpoint()]), trigger_time=7.0)
    store.delete_slice("default", "web-1")
    assert store.take_dirty().trigger_times == {}


def test_pending_slice_changes_are_counted_until_taken() -> None:
    store = Store()
    store.set_slice(endpoint_slice(endpoints=[endpoint()]))
    store.delete_slice("default", "web-1")
    assert store.slice_changes_pending == 2
    store.take_dirty()
    assert store.slice_changes_pending == 0
    assert not store.is_dirty
