"""Events become facts: selection, the gate, rejected objects, nodes, networks and counting."""

from __future__ import annotations

import pytest
from tests.support.api_objects import node_object, service_cidr_object, service_object, slice_object
from tests.support.builders import NODE
from tests.support.fake_backend import Route
from tests.support.spine import Spine, delete, upsert

from kubeproxy.api import objects
from kubeproxy.api.source import Delete, Kind, Synced, Undecodable
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.sync.intake import BURST, MOST_PROBLEMS

V4, V6 = Family.IPV4, Family.IPV6
WEB = ServiceName("default", "web")
ROUTE = Route("10.96.0.10", 80, "TCP")


def dual(**spec: object) -> objects.Service:
    """A Service with an address of each family."""
    fields: dict[str, object] = {
        "clusterIPs": ["10.96.0.10", "fd00:96::a"],
        "ipFamilies": ["IPv4", "IPv6"],
    }
    return service_object("default/web", labels=None, ingress=(), **(fields | spec))


@pytest.fixture
def spine() -> Spine:
    """Both families, with the lists complete and no request recorded yet."""
    made = Spine()
    made.sync()
    made.listener.requests.clear()
    return made


def services(spine: Spine, family: Family = V4) -> frozenset[ServiceName]:
    return spine.engines[family].pipeline.store.service_names()


def slices(spine: Spine, family: Family = V4) -> set[tuple[str, str]]:
    return set(spine.engines[family].pipeline.store.slice_names())


# --- selection ---


def test_a_service_that_gains_the_proxy_name_label_is_gone(spine: Spine) -> None:
    spine.hold(service_object())
    spine.hold(service_object(labels={objects.PROXY_NAME_LABEL: ""}))
    assert not services(spine)
    spine.hold(service_object())
    assert services(spine) == {WEB}


def test_a_service_that_becomes_headless_is_gone(spine: Spine) -> None:
    spine.hold(service_object())
    spine.hold(service_object(clusterIP="None"))
    assert not services(spine)
    assert not spine.counters.rejected


def test_a_slice_that_gains_the_headless_label_is_gone(spine: Spine) -> None:
    spine.hold(slice_object(addresses=["10.244.1.5"]))
    assert slices(spine) == {("default", "web-1")}
    spine.hold(slice_object(addresses=["10.244.1.5"], labels={objects.HEADLESS_LABEL: ""}))
    assert not slices(spine)
    spine.hold(slice_object(addresses=["10.244.1.5"]))
    assert slices(spine) == {("default", "web-1")}


def test_a_service_that_loses_a_family_is_gone_from_that_family_only(spine: Spine) -> None:
    spine.hold(dual())
    assert services(spine, V4) == services(spine, V6) == {WEB}
    spine.hold(service_object())
    assert services(spine, V4) == {WEB}
    assert not services(spine, V6)


def test_a_service_that_becomes_an_external_name_is_gone(spine: Spine) -> None:
    spine.hold(service_object())
    spine.hold(service_object(type="ExternalName"))
    assert not services(spine)


def test_a_slice_concerns_its_own_family_only(spine: Spine) -> None:
    spine.hold(slice_object(addressType="IPv6", addresses=["fd00:244::5"]))
    assert not slices(spine, V4)
    assert slices(spine, V6) == {("default", "web-1")}
    assert spine.listener.requests == [V6]


def test_a_slice_of_a_family_that_does_not_run_is_passed_over() -> None:
    spine = Spine(families=(V4,))
    spine.sync()
    spine.listener.requests.clear()
    spine.hold(slice_object(addressType="IPv6", addresses=["fd00:244::5"]))
    assert not spine.listener.requests
    assert not spine.counters.rejected
    assert not spine.counters.slice_events


def test_a_slice_made_again_in_the_other_family_is_gone_from_the_first(spine: Spine) -> None:
    """A list after a broken watch shows the new slice; the deletion in between is never seen."""
    spine.hold(slice_object(addresses=["10.244.1.5"]))
    spine.hold(slice_object(addressType="IPv6", addresses=["fd00:244::5"]))
    assert not slices(spine, V4)
    assert slices(spine, V6) == {("default", "web-1")}


def test_a_slice_that_moves_to_another_service_leaves_the_first(spine: Spine) -> None:
    spine.hold(slice_object(addresses=["10.244.1.5"]))
    spine.hold(slice_object(addresses=["10.244.1.5"], service="other"))
    store = spine.engines[V4].pipeline.store
    assert not store.endpoints(WEB)
    assert store.endpoints(ServiceName("default", "other"))


# --- what cannot be used ---


@pytest.mark.parametrize(
    "bad",
    [
        service_object(clusterIP="10.96.0.300"),
        dual(clusterIPs=["10.96.0.11", "nonsense"]),
    ],
)
def test_a_rejected_service_keeps_its_earlier_version_in_every_family(
    spine: Spine, bad: objects.Service
) -> None:
    spine.hold(dual())
    spine.listener.requests.clear()
    spine.hold(bad)
    for engine in spine.engines.values():
        assert engine.pipeline.store.service(WEB) is not None
    facts = spine.engines[V4].pipeline.store.service(WEB)
    assert facts is not None and facts.cluster_ip == "10.96.0.10"
    assert spine.counters.rejected == ["Service"]
    assert not spine.listener.requests


def test_an_fqdn_slice_is_rejected_and_counted(spine: Spine) -> None:
    spine.hold(slice_object(addressType="FQDN", addresses=["example.com"]))
    assert spine.counters.rejected == ["EndpointSlice"]
    assert not spine.counters.slice_events
    assert not spine.listener.requests


def test_a_rejected_slice_keeps_its_earlier_version(spine: Spine) -> None:
    spine.hold(slice_object(addresses=["10.244.1.5"]))
    spine.hold(slice_object(addresses=["10.244.1.6"], service=None))
    assert slices(spine) == {("default", "web-1")}
    assert spine.counters.rejected == ["EndpointSlice"]


def test_a_bad_part_is_counted_once_and_the_rest_is_used(spine: Spine) -> None:
    ports = [{"port": 80, "name": "http"}, {"port": 0, "name": "zero"}]
    spine.hold(service_object(ports=ports))
    spine.hold(service_object(ports=ports))
    assert spine.counters.rejected == ["Service"]
    assert services(spine) == {WEB}


def test_what_has_the_wrong_shape_is_counted_and_changes_nothing(spine: Spine) -> None:
    spine.hold(service_object())
    spine.listener.requests.clear()
    spine.send(Undecodable(Kind.SERVICE, "default/web", "expected an object"))
    assert spine.counters.rejected == ["Service"]
    assert services(spine) == {WEB}
    assert not spine.listener.requests


def test_a_rejected_object_does_not_stop_the_next(spine: Spine) -> None:
    spine.hold(service_object("default/bad", clusterIP="x"), service_object())
    assert services(spine) == {WEB}


# --- the gate ---


def test_nothing_is_due_before_services_and_slices_are_both_listed() -> None:
    spine = Spine()
    spine.hold(service_object(), slice_object(addresses=["10.244.1.5"]))
    spine.send(Synced(Kind.SERVICE), Synced(Kind.NODE), Synced(Kind.SERVICE_CIDR))
    spine.send(Synced(Kind.SERVICE))
    assert not spine.listener.requests
    spine.send(Synced(Kind.ENDPOINT_SLICE))
    assert sorted(f.value for f in spine.listener.requests) == ["IPv4", "IPv6"]


def test_a_list_repeated_later_asks_for_nothing(spine: Spine) -> None:
    spine.sync()
    assert not spine.listener.requests


# --- counting and requests ---


def test_a_service_event_counts_once_per_family(spine: Spine) -> None:
    spine.hold(dual())
    assert spine.counters.service_events == [1, 1]
    spine.hold(service_object("default/more"))
    assert spine.counters.service_events == [1, 1, 2, 1]
    spine.send(delete(service_object("default/more")))
    assert spine.counters.service_events == [1, 1, 2, 1, 1, 1]


def test_an_equal_event_counts_but_asks_for_nothing(spine: Spine) -> None:
    everything = (dual(), slice_object(addresses=["10.244.1.5"]), node_object())
    spine.hold(*everything)
    asked = len(spine.listener.requests)
    spine.hold(*everything)
    assert len(spine.listener.requests) == asked
    assert len(spine.counters.service_events) == 4
    assert spine.counters.slice_events == [1, 1]


def test_a_delete_of_what_was_unknown_asks_for_nothing(spine: Spine) -> None:
    for kind in Kind:
        spine.send(Delete(kind, "default", "unknown"))
    assert not spine.listener.requests
    assert not spine.counters.slice_events


def test_a_change_asks_only_the_family_it_concerns(spine: Spine) -> None:
    spine.hold(dual())
    spine.listener.requests.clear()
    spine.hold(dual(externalIPs=["203.0.113.1"]))
    assert spine.listener.requests == [V4]


# --- the node ---


async def test_the_zone_follows_the_node(spine: Spine) -> None:
    endpoints = [
        {"addresses": ["10.244.1.5"], "hints": {"forZones": [{"name": "a"}]}},
        {"addresses": ["10.244.1.6"], "hints": {"forZones": [{"name": "b"}]}},
    ]
    spine.hold(service_object(), slice_object(endpoints=endpoints))
    seen = []
    for zone in ("a", "b", "c", None):
        spine.hold(node_object(NODE, zone=zone))
        await spine.rounds()
        seen.append(spine.kernels[V4].state[ROUTE])
    both = ("forward", "10.244.1.5:8080", "10.244.1.6:8080")
    assert seen == [("forward", "10.244.1.5:8080"), ("forward", "10.244.1.6:8080"), both, both]


def test_the_zone_stays_when_the_node_is_deleted(spine: Spine) -> None:
    spine.hold(node_object(NODE, zone="a"))
    spine.send(delete(node_object(NODE)))
    assert spine.engines[V4].pipeline.node.zone == "a"
    assert spine.nodes.seen == [node_object(NODE, zone="a"), None]


def test_a_node_change_that_concerns_no_plan_asks_for_nothing(spine: Spine) -> None:
    spine.hold(node_object(NODE, zone="a"))
    spine.listener.requests.clear()
    spine.hold(node_object(NODE, zone="a", taints=[{"key": "x"}]))
    assert not spine.listener.requests
    assert len(spine.nodes.seen) == 2


def test_another_node_is_passed_over(spine: Spine) -> None:
    spine.hold(node_object("worker-z", zone="z"))
    assert spine.engines[V4].pipeline.node.zone == ""
    assert not spine.nodes.seen


def test_new_host_addresses_reach_their_family(spine: Spine) -> None:
    spine.intake.addresses_changed({V4: ("192.0.2.77",), V6: ("2001:db8::77",)})
    assert spine.engines[V4].pipeline.node.addresses == ("192.0.2.77",)
    assert spine.engines[V6].pipeline.node.addresses == ("2001:db8::77",)
    spine.listener.requests.clear()
    spine.intake.addresses_changed({V4: ("192.0.2.77",), V6: ("2001:db8::77",)})
    assert not spine.listener.requests


def test_interfaces_of_pods_cause_no_round(spine: Spine) -> None:
    """Every pod's interface brings an IPv6 link-local address, which serves nothing."""
    spine.sync()
    spine.intake.addresses_changed({V4: ("192.0.2.77",), V6: ("2001:db8::77",)})
    spine.listener.requests.clear()
    more = ("2001:db8::77", "fe80::1c2d:aff:fe00:1", "fe80::42:1")
    spine.intake.addresses_changed({V4: ("192.0.2.77",), V6: more})
    assert not spine.listener.requests
    assert spine.engines[V6].node.addresses == ("2001:db8::77",)


# --- ServiceCIDRs ---


def cidrs(spine: Spine, family: Family = V4) -> tuple[str, ...]:
    return spine.engines[family].pipeline.node.service_cidrs


def test_a_network_named_twice_stays_until_the_last_name_is_gone(spine: Spine) -> None:
    one = service_cidr_object("one", "10.96.0.0/12", "fd00:96::/112")
    two = service_cidr_object("two", "10.96.0.0/12", "10.112.0.0/12")
    spine.hold(one, two)
    assert cidrs(spine) == ("10.112.0.0/12", "10.96.0.0/12")
    assert cidrs(spine, V6) == ("fd00:96::/112",)
    spine.send(delete(one))
    assert cidrs(spine) == ("10.112.0.0/12", "10.96.0.0/12")
    assert cidrs(spine, V6) == ()
    spine.send(delete(two))
    assert cidrs(spine) == ()


def test_a_network_that_changes_replaces_the_old_one(spine: Spine) -> None:
    spine.send(upsert(service_cidr_object("one", "10.96.0.0/12")))
    spine.send(upsert(service_cidr_object("one", "10.112.0.0/12")))
    assert cidrs(spine) == ("10.112.0.0/12",)


def test_a_bad_network_is_counted_and_the_good_one_is_used(spine: Spine) -> None:
    spine.hold(service_cidr_object("one", "nonsense", "10.96.0.0/12"))
    assert cidrs(spine) == ("10.96.0.0/12",)
    assert spine.counters.rejected == ["ServiceCIDR"]


# --- the log ---


def test_an_object_that_is_changed_all_the_time_does_not_fill_the_log(
    spine: Spine, caplog: pytest.LogCaptureFixture
) -> None:
    """Anyone with edit rights could fill it. All rejections count, other objects are named."""
    for number in range(1000):
        spine.hold(service_object(clusterIP=f"nonsense{number}"))
        spine.intake.send(Undecodable(Kind.SERVICE, "shop/other", f"reason {number}"))
    spine.hold(service_object("shop/third", clusterIP="nonsense"))
    assert len(spine.counters.rejected) == 2001
    messages = [r for r in caplog.records if "cannot be used" in r.getMessage()]
    assert len(messages) == 2 * BURST + 1


def test_of_many_problems_of_one_object_some_are_logged(
    spine: Spine, caplog: pytest.LogCaptureFixture
) -> None:
    spine.hold(slice_object(addresses=["nonsense"] * 1000))
    messages = [r for r in caplog.records if "left out" in r.getMessage()]
    assert len(messages) == MOST_PROBLEMS + 1
