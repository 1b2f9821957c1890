"""The store compares every event with what it holds."""

from __future__ import annotations

from tests.support.builders import endpoint, endpoint_slice, service

from kubeproxy.facts.ids import ServiceName
from kubeproxy.facts.policy import FULL_ROTATION
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


def test_slices_of_a_service_are_in_the_order_of_their_names() -> None:
    """Whatever the order of events, and also when one in the middle goes and returns."""
    store = Store()
    found = {name: endpoint_slice(slice_name=name) for name in ("c", "a", "b")}
    for facts in found.values():
        store.set_slice(facts)
    assert store.slices(WEB) == (found["a"], found["b"], found["c"])
    store.delete_slice("default", "b")
    assert store.slices(WEB) == (found["a"], found["c"])
    store.set_slice(found["b"])
    assert store.slices(WEB) == (found["a"], found["b"], found["c"])
    for name in found:
        store.delete_slice("default", name)
    assert not store.has_slices(WEB)


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


def test_what_a_check_finds_makes_its_service_dirty_and_no_other() -> None:
    store = Store()
    for each in ("default/web", "default/api"):
        store.set_service(service(each))
        store.set_slice(endpoint_slice(each, [endpoint()], slice_name=each[-3:]))
    store.take_dirty()
    name = ServiceName("default", "web")
    assert store.set_failing(name, {"10.244.1.5:8080": "connection refused"})
    assert not store.set_failing(name, {"10.244.1.5:8080": "connection refused"})
    assert store.is_dirty
    assert store.take_dirty().services == {name}
    assert not store.is_dirty
    assert store.rotation(name).failing == {"10.244.1.5:8080": "connection refused"}
    assert store.set_failing(name, {})
    assert store.take_dirty().services == {name}
    assert store.rotation(name) is FULL_ROTATION
