"""EndpointSlices, Nodes and ServiceCIDRs become facts; what cannot be used is named."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.api_objects import Json, node_object, service_cidr_object, slice_object

from kubeproxy.api import objects
from kubeproxy.api.decode import (
    DecodedSlice,
    decode_node_ips,
    decode_pod_cidrs,
    decode_service_cidrs,
    decode_slice,
    is_eligible_node,
    is_selected_slice,
)
from kubeproxy.errors import ObjectError
from kubeproxy.facts.endpoint import Endpoint, PortKey, merge_slices
from kubeproxy.facts.ids import Family, Protocol, ServiceName

HTTP = PortKey("http", Protocol.TCP)
NODE = "worker-a"


def decoded(**fields: object) -> DecodedSlice:
    return decode_slice(slice_object(**fields), NODE)  # type: ignore[arg-type]


def only_endpoint(**endpoint: object) -> Endpoint:
    """The endpoint of a slice that has this one and one port."""
    item = {"addresses": ["10.244.1.5"], **endpoint}
    ((key, (found,)),) = decoded(endpoints=[item]).facts.endpoints
    assert key == HTTP
    return found


# --- keys ---


def test_a_slice_belongs_to_the_service_its_label_names() -> None:
    found = decoded(name="shop/cart-abc", service="cart")
    assert found.facts.service == ServiceName("shop", "cart")
    assert found.facts.name == "cart-abc"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"service": None},
            "label kubernetes.io/service-name is missing: no Service to serve",
        ),
        ({"service": ""}, "label kubernetes.io/service-name is missing: no Service to serve"),
        (
            {"service": "w" * 1_000_000},
            "label kubernetes.io/service-name has 1000000 characters, the limit is 253",
        ),
        ({"name": "default/"}, "metadata.name is empty"),
        ({"name": "web-1"}, "metadata.namespace is empty"),
        (
            {"name": "default/" + "x" * 1_000_000},
            "metadata.name has 1000000 characters, the limit is 253",
        ),
        ({"addressType": "FQDN"}, "addressType 'FQDN' is not supported"),
        ({"addressType": ""}, "addressType '' is not supported"),
        ({"addressType": "ipv4"}, "addressType 'ipv4' is not supported"),
    ],
)
def test_a_slice_that_serves_nobody_we_know_is_rejected(fields: Json, reason: str) -> None:
    with pytest.raises(ObjectError) as caught:
        decoded(**fields)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, True),
        ({objects.HEADLESS_LABEL: ""}, False),
        ({objects.HEADLESS_LABEL: "yes"}, False),
        # The proxy-name label is for Services; on a slice it means nothing.
        ({objects.PROXY_NAME_LABEL: "other"}, True),
    ],
)
def test_headless_slices_are_not_selected(labels: dict[str, str], expected: bool) -> None:
    assert is_selected_slice(slice_object(labels=labels)) is expected


# --- ports ---


@pytest.mark.parametrize(
    ("port", "key"),
    [
        ({"name": "http", "port": 8080, "protocol": "TCP"}, HTTP),
        ({"name": "", "port": 8080, "protocol": "UDP"}, PortKey("", Protocol.UDP)),
        ({"name": "x", "port": 8080}, PortKey("x", Protocol.TCP)),
        ({"name": None, "port": 8080}, None),
        ({"port": 8080}, None),
        ({"name": "http"}, None),
        ({"name": "http", "port": None}, None),
        ({"name": "http", "port": 0}, None),
        ({"name": "http", "port": 65536}, None),
        ({"name": "http", "port": -1}, None),
        ({"name": "http", "port": 8080, "protocol": "ICMP"}, None),
    ],
)
def test_a_port_needs_name_number_and_protocol(port: Json, key: PortKey | None) -> None:
    other = {"name": "good", "port": 9000, "protocol": "TCP"}
    found = decoded(addresses=["10.244.1.5"], ports=[port, other])
    keys = [k for k, _ in found.facts.endpoints]
    assert keys == [k for k in (key, PortKey("good", Protocol.TCP)) if k]
    assert len(found.problems) == (key is None)
    assert all(problem.startswith("ports[0] is left out") for problem in found.problems)


def test_a_problem_with_a_port_stays_short() -> None:
    found = decoded(ports=[{"name": "n" * 1_000_000, "protocol": "p" * 1_000_000}])
    assert len(found.problems[0]) < 400


def test_every_port_has_every_endpoint() -> None:
    ports = [{"name": "a", "port": 1}, {"name": "b", "port": 2, "protocol": "UDP"}]
    found = decoded(addresses=["10.244.1.5", "10.244.1.6"], ports=ports)
    assert [(k.name, [e.text for e in es]) for k, es in found.facts.endpoints] == [
        ("a", ["10.244.1.5:1", "10.244.1.6:1"]),
        ("b", ["10.244.1.5:2", "10.244.1.6:2"]),
    ]


@pytest.mark.parametrize("empty", [[], None])
def test_a_slice_may_have_no_ports_or_no_endpoints(empty: object) -> None:
    assert decoded(ports=empty, addresses=["10.244.1.5"]).facts.endpoints == ()
    assert decoded(endpoints=empty).facts.endpoints == ((HTTP, ()),)


# --- endpoints ---


@pytest.mark.parametrize(
    ("kind", "addresses", "text"),
    [
        ("IPv4", ["10.244.1.5"], "10.244.1.5:8080"),
        ("IPv4", ["010.244.001.005"], "10.244.1.5:8080"),
        ("IPv4", ["::ffff:10.244.1.5"], "10.244.1.5:8080"),
        ("IPv4", ["10.244.1.5", "10.244.1.6"], "10.244.1.5:8080"),  # only the first counts
        ("IPv6", ["FD00:244::0005"], "[fd00:244::5]:8080"),
    ],
)
def test_the_first_address_counts_in_canonical_form(
    kind: str, addresses: list[str], text: str
) -> None:
    found = decoded(addressType=kind, endpoints=[{"addresses": addresses}])
    assert found.family is Family(kind)
    assert [e.text for _, es in found.facts.endpoints for e in es] == [text]


@pytest.mark.parametrize(
    "addresses",
    [[], None, [""], ["nonsense"], ["0.0.0.0"], ["fd00::5"], ["10.244.1.5 "], ["1" * 1_000_000]],
)
def test_an_endpoint_without_a_usable_address_is_left_out(addresses: list[str] | None) -> None:
    found = decoded(endpoints=[{"addresses": addresses}, {"addresses": ["10.244.1.6"]}])
    assert [e.address for _, es in found.facts.endpoints for e in es] == ["10.244.1.6"]
    (problem,) = found.problems
    assert problem.startswith("endpoints[0] is left out:") and len(problem) < 200


@pytest.mark.parametrize(
    ("conditions", "ready", "serving", "terminating"),
    [
        (None, True, True, False),
        ({}, True, True, False),
        ({"ready": None, "serving": None, "terminating": None}, True, True, False),
        ({"ready": True}, True, True, False),
        ({"ready": False}, False, True, False),
        ({"ready": False, "serving": False}, False, False, False),
        ({"ready": False, "serving": True, "terminating": True}, False, True, True),
        ({"ready": True, "terminating": True}, True, True, True),
    ],
)
def test_conditions_have_defaults(
    conditions: Json | None, ready: bool, serving: bool, terminating: bool
) -> None:
    found = only_endpoint(conditions=conditions)
    assert (found.is_ready, found.is_serving, found.is_terminating) == (ready, serving, terminating)


@pytest.mark.parametrize(
    ("node_name", "this_node", "local"),
    [
        (NODE, NODE, True),
        ("worker-b", NODE, False),
        (None, NODE, False),
        ("", "", False),
        (None, "", False),
    ],
)
def test_an_endpoint_is_local_if_its_node_is_this_one(
    node_name: str | None, this_node: str, local: bool
) -> None:
    item = {"addresses": ["10.244.1.5"], "nodeName": node_name}
    ((_, (found,)),) = decode_slice(slice_object(endpoints=[item]), this_node).facts.endpoints
    assert found.is_local is local


@pytest.mark.parametrize(
    ("hints", "zones", "nodes"),
    [
        (None, set(), set()),
        ({}, set(), set()),
        ({"forZones": [{"name": "a"}, {"name": "b"}]}, {"a", "b"}, set()),
        ({"forNodes": [{"name": "n"}]}, set(), {"n"}),
        ({"forZones": [], "forNodes": None}, set(), set()),
    ],
)
def test_hints(hints: Json | None, zones: set[str], nodes: set[str]) -> None:
    found = only_endpoint(hints=hints)
    assert (set(found.zone_hints), set(found.node_hints)) == (zones, nodes)


@pytest.mark.parametrize(
    ("family", "addresses"),
    [("IPv4", ["10.0.0.1", "10.0.0.10", "10.0.0.2"]), ("IPv6", ["fd00::1", "fd00::10", "fd00::2"])],
)
def test_endpoints_are_in_the_order_of_plans(family: str, addresses: list[str]) -> None:
    """The same endpoints in another order are no change, and a plan can keep the same tuple."""
    given = decoded(addressType=family, addresses=addresses).facts
    assert given == decoded(addressType=family, addresses=addresses[::-1]).facts
    assert merge_slices([given])[HTTP] is given.endpoints[0][1]


# --- trigger times ---


@pytest.mark.parametrize(
    ("text", "expected", "problem_count"),
    [
        ("1970-01-01T00:01:40Z", 100.0, 0),
        ("1970-01-01T00:01:40.25Z", 100.25, 0),
        ("1970-01-01T00:01:40.123456789Z", 100.123456, 0),
        ("1970-01-01T01:01:40+01:00", 100.0, 0),
        ("", None, 0),
        (None, None, 0),
        ("yesterday", None, 1),
        ("1970-01-01T00:01:40", None, 1),
        ("x" * 1_000_000, None, 1),
    ],
)
def test_the_trigger_time(text: str | None, expected: float | None, problem_count: int) -> None:
    annotations = {} if text is None else {objects.TRIGGER_TIME_ANNOTATION: text}
    found = decoded(annotations=annotations)
    assert found.trigger_time == expected
    assert len(found.problems) == problem_count
    assert all(len(problem) < 200 for problem in found.problems)


@pytest.mark.parametrize(
    "text",
    [
        '{"addressType": 4}',
        '{"endpoints": {}}',
        '{"endpoints": [{"addresses": "10.0.0.1"}]}',
        '{"endpoints": [{"conditions": {"ready": "true"}}]}',
        '{"endpoints": [{"hints": []}]}',
        '{"ports": [{"port": "http"}]}',
        '{"metadata": {"labels": {"kubernetes.io/service-name": 5}}}',
        "[]",
    ],
)
def test_a_wrong_shape_is_refused_while_decoding(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=objects.EndpointSlice)


# --- Node and ServiceCIDR ---


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ([], ()),
        ([("Hostname", "10.0.0.1")], ()),
        ([("InternalIP", "10.0.0.1")], ("10.0.0.1",)),
        ([("ExternalIP", "203.0.113.1"), ("InternalIP", "10.0.0.1")], ("10.0.0.1",)),
        ([("ExternalIP", "203.0.113.1"), ("Hostname", "a")], ("203.0.113.1",)),
        ([("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1")], ("10.0.0.1", "fd00::1")),
        ([("InternalIP", "fd00::1"), ("InternalIP", "10.0.0.1")], ("fd00::1", "10.0.0.1")),
        ([("InternalIP", "10.0.0.1"), ("ExternalIP", "2001:DB8::1")], ("10.0.0.1", "2001:db8::1")),
        ([("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2")], ("10.0.0.1",)),
        ([("InternalIP", "nonsense"), ("InternalIP", "10.0.0.2")], ("10.0.0.2",)),
    ],
)
def test_node_addresses(addresses: list[tuple[str, str]], expected: tuple[str, ...]) -> None:
    assert decode_node_ips(node_object(addresses=addresses)) == expected


def test_pod_networks_are_kept_as_written() -> None:
    cidrs = ["10.244.01.0/24", "fd00::/64"]
    assert decode_pod_cidrs(node_object(podCIDRs=cidrs)) == tuple(cidrs)
    assert decode_pod_cidrs(objects.Node()) == ()


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (None, False),
        (node_object(), True),
        (objects.Node(metadata=objects.NodeMeta(deletion_timestamp="2026-01-01T00:00:00Z")), False),
        (node_object(taints=[{"key": "ToBeDeletedByClusterAutoscaler"}]), False),
        (node_object(taints=[{"key": "node.kubernetes.io/unreachable"}]), True),
    ],
)
def test_which_nodes_are_eligible(node: objects.Node | None, expected: bool) -> None:
    assert is_eligible_node(node) is expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (service_cidr_object("a", "10.96.5.0/12", "FD00::/112"), ("10.96.0.0/12", "fd00::/112")),
        (service_cidr_object("a", "nonsense", "10.96.0.0/12"), ("10.96.0.0/12",)),
        (objects.ServiceCIDR(), ()),
    ],
)  # fmt: skip
def test_service_networks(item: objects.ServiceCIDR, expected: tuple[str, ...]) -> None:
    assert decode_service_cidrs(item).cidrs == expected
