"""An explanation names the real reason, in the words of the objects that people can correct."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.snapshots import NOW, held, snapshot

from kpctl.report.explain import explain, is_served
from kpctl.report.services import programmed
from kpctl.report.text import explanation_text
from kpctl.report.types import Explanation, PortReport
from kpctl.snapshot.target import parse_target
from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.endpoint import SliceFacts
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.policy import CheckKind, HealthCheck
from kubeproxy.inspection.types import Changed, EndpointChange, Problem, Refused
from kubeproxy.modes.registry import mode_names

HERE = endpoint("10.244.1.5", local=True)
THERE = endpoint("10.244.2.5")
SLICE = endpoint_slice(endpoints=[HERE, THERE])


def asked(found: Snapshot, text: str = "default/web", source: str = "") -> Explanation:
    return explain(found, parse_target(text), source)


def only_port(explanation: Explanation) -> PortReport:
    ((report,),) = [service.ports for service in explanation.services]
    return report


def faults(found: Snapshot, text: str = "default/web") -> str:
    return "\n".join(only_port(asked(found, text)).faults)


def text_of(explanation: Explanation, *, is_wide: bool = False) -> str:
    return "\n".join(text for _, text in explanation_text(explanation, is_wide=is_wide))


# --- what is refused ---


def test_a_refused_endpoint_is_the_reason_and_not_its_readiness() -> None:
    bad = endpoint("169.254.169.254")
    found = snapshot(held(service(), endpoint_slice(endpoints=[bad])))
    assert faults(found) == "this node refuses 169.254.169.254:8080 (a link-local address)"
    assert "out 169.254.169.254:8080 on worker-b: refused: a link-local address" in text_of(
        asked(found)
    )


def test_a_refused_endpoint_is_named_beside_those_that_serve() -> None:
    bad = endpoint("127.0.0.1")
    found = snapshot(held(service(), endpoint_slice(endpoints=[bad, HERE])))
    assert faults(found) == "this node refuses 127.0.0.1:8080 (a loopback address)"


def test_a_refused_external_ip_is_named() -> None:
    facts = replace(service(), external_ips=("127.0.0.1",))
    found = snapshot(held(facts, SLICE))
    assert "this node refuses 127.0.0.1 (a loopback address" in faults(found)


# --- what is right ---


@pytest.mark.parametrize("mode", mode_names())
@pytest.mark.parametrize("family", Family)
def test_a_service_that_is_served_is_explained_in_every_mode(mode: str, family: Family) -> None:
    """Its endpoints are in, and the kernel objects that implement it name its address."""
    is_ipv4 = family is Family.IPV4
    address, pod = ("10.96.0.10", "10.244.1.5") if is_ipv4 else ("fd00:96::10", "fd00:244::5")
    facts = endpoint_slice(endpoints=[endpoint(pod, local=True)])
    found = asked(snapshot(held(service(cluster_ip=address), facts, family=family), mode=mode))
    report = only_port(found)
    assert is_served(found) and not report.faults
    assert [each.is_used for each in report.endpoints] == [True]
    objects = "\n".join(report.kernel_objects)
    assert address in objects and pod in objects
    assert "ServicePortId(" not in objects, "lines are for people"


def test_every_endpoint_is_in_or_out_with_the_reason() -> None:
    sick = endpoint("10.244.2.6", ready=False, serving=False)
    going = endpoint("10.244.2.7", ready=False, terminating=True)
    facts = endpoint_slice(endpoints=[HERE, sick, going])
    found = {e.at: e for e in only_port(asked(snapshot(held(service(), facts)))).endpoints}
    assert found[HERE.text].because == "ready" and found[HERE.text].slices == ("web-1",)
    assert found[sick.text].because == "neither ready nor serving"
    assert not found[going.text].is_used and "others are ready" in found[going.text].because


def test_an_endpoint_that_fails_its_check_is_out_with_the_reason_and_the_check() -> None:
    check = HealthCheck(CheckKind.HTTP, "/healthz", fall=2)
    found = held(service(health_check=check), SLICE, failing={HERE.text: "status 503"})
    explanation = asked(snapshot(found))
    text = text_of(explanation)
    assert "served by 1 of 2 endpoints" in text
    assert f"out {HERE.text} on worker-a: fails its health check: status 503; ready" in text
    assert "health check http /healthz fall=2" in text
    (row,) = programmed(snapshot(found), parse_target("default/web"))
    assert [each.because for each in row.endpoints if not each.is_used] == [
        "fails its health check: status 503"
    ]


def test_hints_and_the_safeguard_that_switched_them_off_are_named() -> None:
    hinted = [endpoint("10.244.1.5", zones=["a"]), endpoint("10.244.2.5", zones=["b"])]
    on = node(zone="a")
    report = only_port(asked(snapshot(held(service(), endpoint_slice(endpoints=hinted)), on=on)))
    assert [e.is_used for e in report.endpoints] == [True, False]
    assert report.endpoints[1].because == "not hinted for zone a"
    mixed = [*hinted, endpoint("10.244.3.5")]
    report = only_port(asked(snapshot(held(service(), endpoint_slice(endpoints=mixed)), on=on)))
    assert report.notes == ("zone hints ignored: a ready endpoint has none",)


def test_an_address_with_another_ip_mode_is_mentioned() -> None:
    facts = replace(service(), ignored=("load balancer IP 203.0.113.8 is not used: ...",))
    assert "203.0.113.8" in text_of(asked(snapshot(held(facts, SLICE))))


def test_the_last_change_and_its_event_are_told() -> None:
    change = EndpointChange(NOW - 90, HERE.text, "not ready", "ready")
    one = held(
        service(),
        SLICE,
        changed=Changed(NOW - 90, "EndpointSlice web-1 changed"),
        endpoint_changes=[change],
    )
    text = text_of(asked(snapshot(one)))
    assert "1 min ago: EndpointSlice web-1 changed" in text
    assert f"{HERE.text} not ready → ready" in text


@pytest.mark.parametrize("text", ["10.96.0.10:80", "30080", "192.0.2.10:30080", "default/web:http"])
def test_a_service_is_found_by_where_it_is_served(text: str) -> None:
    found = asked(snapshot(held(service(node_port=30080), SLICE)), text)
    assert only_port(found).service_port == "default/web:http"


def test_two_services_with_one_address_are_named_with_the_one_that_is_served() -> None:
    other = service("shop/web")
    both = snapshot(held(service(), SLICE), held(other, endpoint_slice("shop/web", [HERE])))
    found = asked(both, "10.96.0.10:80")
    assert [port.claimed_by for each in found.services for port in each.ports] == [
        ("shop/web:http",),
        ("default/web:http",),
    ]
    assert text_of(found).count("the first by name is served, default/web:http") == 2


def test_only_the_family_of_the_client_is_explained() -> None:
    six = held(service(cluster_ip="fd00:96::10"), family=Family.IPV6)
    both = snapshot(held(service(), SLICE), six)
    assert only_port(asked(both, source="10.244.1.9")).ip_family == "IPv4"
    assert len(asked(both).services[0].ports) == 2


# --- no endpoints ---


def test_a_port_name_that_differs_is_named() -> None:
    facts = endpoint_slice(endpoints=[HERE], port_name="www")
    found = snapshot(held(service(), facts))
    assert faults(found) == (
        "the port of EndpointSlice web-1 is named `www`, and the Service wants `http`"
    )
    assert not is_served(asked(found))


def test_a_protocol_that_differs_is_named() -> None:
    facts = endpoint_slice(endpoints=[HERE], protocol=Protocol.UDP)
    assert faults(snapshot(held(service(), facts))) == (
        "EndpointSlice web-1 has the port `http` for UDP, and the Service wants TCP"
    )


def test_slices_without_ports_and_without_endpoints_are_told_apart() -> None:
    bare = SliceFacts(ServiceName("default", "web"), "web-1", ())
    assert "has no ports" in faults(snapshot(held(service(), bare)))
    assert "has no endpoints" in faults(snapshot(held(service(), endpoint_slice())))


def test_a_slice_in_another_namespace_is_found() -> None:
    astray = held(None, endpoint_slice("shop/web", [HERE]))
    found = faults(snapshot(held(service()), astray))
    assert "EndpointSlice web-1 in namespace shop names a Service web" in found


def test_a_slice_that_names_a_service_that_does_not_exist_is_found() -> None:
    astray = held(None, endpoint_slice("default/wbe", [HERE], slice_name="x-1"))
    found = faults(snapshot(held(service()), astray))
    assert "EndpointSlice x-1 names a Service default/wbe, which does not exist here" in found


def test_slices_of_the_other_family_only_are_mentioned() -> None:
    six = held(
        service(cluster_ip="fd00:96::10"),
        endpoint_slice(endpoints=[endpoint("fd00:244::5")]),
        family=Family.IPV6,
    )
    found = asked(snapshot(held(service()), six))
    (first, second) = found.services[0].ports
    assert "of IPv6 only (web-1)" in first.faults[0] and not second.faults


def test_a_service_without_any_slice_says_what_is_missing() -> None:
    assert "selector matches no pod" in faults(snapshot(held(service())))


def test_endpoints_that_are_not_ready_are_counted_with_the_time() -> None:
    sick = [endpoint(a, ready=False, serving=False) for a in ("10.244.1.5", "10.244.2.5")]
    changes = [EndpointChange(NOW - 120, sick[0].text, "ready", "not ready")]
    one = held(service(), endpoint_slice(endpoints=sick), endpoint_changes=changes)
    found = faults(snapshot(one))
    assert (
        "all 2 endpoints are not ready, the last of them since " in found and "2 min ago" in found
    )
    without = faults(snapshot(held(service(), endpoint_slice(endpoints=sick))))
    assert "for as long as this proxy remembers" in without


def test_policy_local_without_a_local_endpoint_names_the_nodes() -> None:
    found = snapshot(held(service(internal_local=True), endpoint_slice(endpoints=[THERE])))
    assert faults(found) == (
        "internalTrafficPolicy is Local, and all endpoints are on other nodes: worker-b"
    )


def test_policy_local_with_a_sick_local_endpoint_names_it_and_since_when() -> None:
    sick = endpoint("10.244.1.9", local=True, ready=False, serving=False)
    change = EndpointChange(NOW - 120, sick.text, "ready", "not ready")
    one = held(
        service(internal_local=True),
        endpoint_slice(endpoints=[THERE, sick]),
        endpoint_changes=[change],
    )
    text = faults(snapshot(one))
    assert text.startswith(
        "internalTrafficPolicy is Local, and no endpoint on this node can serve:"
        " 10.244.1.9:8080 is not ready, since "
    )
    assert text.endswith("; others are on: worker-b")


def test_an_address_that_its_service_does_not_use_is_explained() -> None:
    text = "load balancer IP 198.51.100.8 is not used: its ipMode is Proxy"
    facts = replace(service("shop/lb"), ignored=(text,))
    assert f"shop/lb: {text}" in asked(snapshot(held(facts)), "198.51.100.8:443").faults


def test_what_the_kernel_refuses_comes_first() -> None:
    refused = Refused("default/web:http/TCP", "the table is full")
    found = asked(snapshot(held(service(), SLICE, refused=[refused])))
    assert "REFUSED" in text_of(found) and "the table is full" in text_of(found)
    assert not is_served(found)


# --- nothing found ---


def unknown(found: Snapshot, text: str) -> str:
    explanation = asked(found, text)
    assert not explanation.services and not is_served(explanation)
    return "\n".join(explanation.faults)


def test_a_service_that_is_not_known_may_be_headless_or_anothers() -> None:
    found = unknown(snapshot(held(service())), "default/wep")
    for possible in ("does not exist", "headless", "ExternalName", "service-proxy-name"):
        assert possible in found
    assert "similar names: default/web" in found


def test_a_service_of_the_same_name_elsewhere_is_mentioned() -> None:
    assert "default/web" in unknown(snapshot(held(service())), "shop/web")


def test_slices_of_an_unknown_service_and_its_problem_are_mentioned() -> None:
    problem = Problem(
        NOW, "Service", "shop/bad", "spec.clusterIP '10.0.0.300' is not an IP address"
    )
    orphan = held(None, endpoint_slice("shop/bad", [HERE], slice_name="bad-1"))
    found = unknown(snapshot(orphan, problems=[problem]), "shop/bad")
    assert "10.0.0.300" in found and "EndpointSlice bad-1 names it" in found


def test_a_port_that_no_service_has_leads_to_those_that_exist() -> None:
    ports = [port(80, node_port=30080), port(443, name="https", node_port=30443)]
    found = snapshot(held(service(ports=ports), SLICE))
    assert "has 443/TCP (https), 80/TCP (http)" in unknown(found, "10.96.0.10:81")
    assert "nearest node ports are 30080 (default/web:http), 30443" in unknown(found, "30081")
    assert "it is the port of default/web:https" in unknown(found, "443")
    assert "no such port" in unknown(found, "default/web:ftp")
    assert "nearest node ports" in unknown(found, "192.0.2.10:30081")


def test_an_address_that_is_not_a_vip_is_placed() -> None:
    found = snapshot(held(service(), SLICE), on=node(service_cidrs=["10.96.0.0/16"]))
    assert "an endpoint, of default/web" in unknown(found, "10.244.1.5:80")
    assert "within the Service network" in unknown(found, "10.96.9.9:80")


# --- the text ---


def test_many_endpoints_and_objects_are_shortened_unless_all_are_wanted() -> None:
    many = [endpoint(f"10.244.2.{n}") for n in range(1, 60)]
    found = asked(snapshot(held(service(), endpoint_slice(endpoints=many))))
    assert "more (-o wide shows all)" in text_of(found)
    assert "more (-o wide" not in text_of(found, is_wide=True)
    assert text_of(found, is_wide=True).count("in  10.244.2.") == 59


def test_clients_to_whom_the_same_happens_share_a_line() -> None:
    found = text_of(asked(snapshot(held(service()))))
    assert "from a pod of this node and the node itself and anywhere else: reject" in found
