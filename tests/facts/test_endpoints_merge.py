"""Endpoints of one Service over its slices."""

from __future__ import annotations

from tests.support.builders import endpoint, endpoint_slice

from kubeproxy.facts.endpoint import PortKey, SliceFacts, merge_rotation, merge_slices
from kubeproxy.facts.ids import Protocol, ServiceName
from kubeproxy.facts.policy import FULL_ROTATION

HTTP = PortKey("http", Protocol.TCP)


def test_endpoints_are_sorted_by_their_text() -> None:
    found = [endpoint(f"10.244.1.{n}", 9001) for n in (9, 10, 100)]
    merged = merge_slices([endpoint_slice(endpoints=found)])
    assert [e.text for e in merged[HTTP]] == [
        "10.244.1.100:9001", "10.244.1.10:9001", "10.244.1.9:9001",
    ]  # fmt: skip


def test_one_slice_in_this_order_is_not_copied() -> None:
    """Most Services have one slice: the facts and the plan hold the same tuple."""
    found = endpoint_slice(endpoints=[endpoint("10.0.0.10"), endpoint("10.0.0.1")])
    assert merge_slices([found])[HTTP] is found.endpoints[0][1]


def test_a_running_endpoint_beats_a_terminating_one_in_any_order() -> None:
    running = endpoint("10.0.0.1")
    going = endpoint("10.0.0.1", terminating=True, ready=False)
    for first, second in ((running, going), (going, running)):
        slices = [
            endpoint_slice(endpoints=[first], slice_name="a"),
            endpoint_slice(endpoints=[second], slice_name="b"),
        ]
        assert merge_slices(slices)[HTTP] == (running,)


def test_between_two_running_the_last_slice_by_name_wins() -> None:
    older, newer = endpoint("10.0.0.1", ready=False), endpoint("10.0.0.1")
    a = endpoint_slice(endpoints=[older], slice_name="a")
    b = endpoint_slice(endpoints=[newer], slice_name="b")
    assert merge_slices([a, b]) == merge_slices([b, a])
    assert merge_slices([b, a])[HTTP] == (newer,)


def test_between_two_terminating_the_first_slice_by_name_wins() -> None:
    first = endpoint("10.0.0.1", terminating=True, ready=False)
    second = endpoint("10.0.0.1", terminating=True, ready=False, serving=False)
    a = endpoint_slice(endpoints=[first], slice_name="a")
    b = endpoint_slice(endpoints=[second], slice_name="b")
    assert merge_slices([b, a])[HTTP] == (first,)


def test_one_address_with_two_ports_is_two_endpoints() -> None:
    found = [endpoint("10.0.0.1", 80), endpoint("10.0.0.1", 81)]
    assert len(merge_slices([endpoint_slice(endpoints=found)])[HTTP]) == 2


def test_a_port_without_endpoints_does_not_appear() -> None:
    empty = SliceFacts(ServiceName("default", "web"), "a", ((HTTP, ()),))
    assert merge_slices([empty]) == {}


def test_weights_of_all_slices_count_and_of_two_the_first_by_name() -> None:
    one = endpoint_slice(endpoints=[], slice_name="a", weights={"10.0.0.1": 2})
    two = endpoint_slice(endpoints=[], slice_name="b", weights={"10.0.0.1": 9, "10.0.0.2": 0})
    assert merge_rotation([two, one]).weights == {"10.0.0.1": 2, "10.0.0.2": 0}


def test_services_without_weights_share_one_value() -> None:
    """What is not used costs nothing per Service."""
    assert merge_rotation([endpoint_slice()]) is FULL_ROTATION
