"""Services become facts of one family: which count, which fields, and what is left out."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.api_objects import Json, service_object

from kubeproxy.api import objects
from kubeproxy.api.decode import decode_service, is_selected_service, service_name
from kubeproxy.errors import ObjectError
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.service import PortFacts, ServiceFacts

V4, V6 = Family.IPV4, Family.IPV6
DUAL: Json = {
    "clusterIP": "10.96.0.10",
    "clusterIPs": ["10.96.0.10", "fd00:96::a"],
    "ipFamilies": ["IPv4", "IPv6"],
}
LOCAL: Json = {"externalTrafficPolicy": "Local"}


def facts(family: Family = V4, /, **fields: object) -> ServiceFacts:
    """The facts of a Service that has some."""
    found = decode_service(service_object(**fields), family).facts  # type: ignore[arg-type]
    assert found is not None
    return found


def problems(**fields: object) -> tuple[str, ...]:
    return decode_service(service_object(**fields), V4).problems  # type: ignore[arg-type]


# --- which Services, and their cluster IP ---


@pytest.mark.parametrize(
    ("spec", "ipv4", "ipv6"),
    [
        ({"clusterIP": ""}, None, None),
        ({"clusterIP": None}, None, None),
        ({"clusterIP": "None"}, None, None),
        ({"type": "ExternalName"}, None, None),
        ({"clusterIP": "10.96.0.10"}, "10.96.0.10", None),
        ({"clusterIP": "FD00:96::0A"}, None, "fd00:96::a"),
        ({"clusterIP": "010.096.000.010"}, "10.96.0.10", None),
        ({"clusterIP": "::ffff:10.96.0.10"}, "10.96.0.10", None),
        (DUAL, "10.96.0.10", "fd00:96::a"),
        (
            {
                "clusterIP": "fd00:96::a",
                "clusterIPs": ["fd00:96::a", "10.96.0.10"],
                "ipFamilies": ["IPv6", "IPv4"],
            },
            "10.96.0.10",
            "fd00:96::a",
        ),
        # The second family has no address yet.
        ({**DUAL, "clusterIPs": ["10.96.0.10"]}, "10.96.0.10", None),
        # Families decide, not `clusterIP`: nothing is listed for either.
        ({**DUAL, "clusterIPs": []}, None, None),
        ({**DUAL, "ipFamilies": ["IPv6"], "clusterIPs": ["fd00:96::b"]}, None, "fd00:96::b"),
        # The first of a family counts.
        (
            {"ipFamilies": ["IPv4", "IPv4"], "clusterIPs": ["10.96.0.1", "10.96.0.2"]},
            "10.96.0.1",
            None,
        ),
        ({"ipFamilies": ["IPv5"], "clusterIPs": ["10.96.0.10"]}, None, None),
    ],
)
def test_the_cluster_ip_of_each_family(spec: Json, ipv4: str | None, ipv6: str | None) -> None:
    for family, expected in ((V4, ipv4), (V6, ipv6)):
        found = decode_service(service_object(**spec), family).facts  # type: ignore[arg-type]
        assert (found.cluster_ip if found else None) == expected


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"clusterIP": "10.96.0"}, "spec.clusterIP '10.96.0' is not an IP address"),
        ({"clusterIP": " 10.96.0.1"}, "spec.clusterIP ' 10.96.0.1' is not an IP address"),
        ({"clusterIP": "0.0.0.0"}, "spec.clusterIP '0.0.0.0' is the unspecified address"),
        ({"clusterIP": "9" * 1_000_000}, f"spec.clusterIP '{'9' * 80}' is not an IP address"),
        (
            {**DUAL, "clusterIPs": ["fd00:96::a", "10.96.0.10"]},
            "spec.clusterIPs[0] 'fd00:96::a' is not an IPv4 address",
        ),
        ({**DUAL, "clusterIPs": ["::"]}, "spec.clusterIPs[0] '::' is the unspecified address"),
    ],
)
def test_a_bad_cluster_ip_rejects_the_service(spec: Json, reason: str) -> None:
    with pytest.raises(ObjectError) as caught:
        decode_service(service_object(**spec), V4)  # type: ignore[arg-type]
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("default/", "metadata.name is empty"),
        ("web", "metadata.namespace is empty"),
        ("default/" + "x" * 254, "metadata.name has 254 characters, the limit is 253"),
        ("default/" + "x" * 1_000_000, "metadata.name has 1000000 characters, the limit is 253"),
        ("y" * 1_000_000 + "/web", "metadata.namespace has 1000000 characters, the limit is 253"),
        ('default/we"b', "metadata.name 'we\"b' is not a valid object name"),
        ("default/we b", "metadata.name 'we b' is not a valid object name"),
        ("default/we\nb", "metadata.name 'we\\nb' is not a valid object name"),
        ("default/wéb", "metadata.name 'wéb' is not a valid object name"),
    ],
)
def test_a_bad_name_rejects_the_service(name: str, reason: str) -> None:
    with pytest.raises(ObjectError) as caught:
        decode_service(service_object(name), V4)
    assert str(caught.value) == reason


def test_a_name_of_the_longest_length_is_good() -> None:
    name = service_name(service_object("default/" + "x" * 253))
    assert name == ServiceName("default", "x" * 253)


@pytest.mark.parametrize(
    ("labels", "cluster_ip", "expected"),
    [
        (None, "10.96.0.10", True),
        ({"app": "web"}, "10.96.0.10", True),
        ({objects.PROXY_NAME_LABEL: "other"}, "10.96.0.10", False),
        ({objects.PROXY_NAME_LABEL: ""}, "10.96.0.10", False),
        (None, "None", False),
        # The headless label is for slices; on a Service it means nothing.
        ({objects.HEADLESS_LABEL: ""}, "10.96.0.10", True),
    ],
)
def test_selection_looks_at_the_presence_of_a_label(
    labels: dict[str, str] | None, cluster_ip: str, expected: bool
) -> None:
    assert is_selected_service(service_object(labels=labels, clusterIP=cluster_ip)) is expected


# --- ports ---


def test_every_port_becomes_a_record_of_its_own() -> None:
    found = facts(
        ports=[
            {"port": 53, "protocol": "UDP", "name": "dns"},
            {"port": 53, "protocol": "TCP", "name": "dns", "nodePort": 30053},
            {"port": 3868, "protocol": "SCTP"},
            {"port": 8080, "name": "plain"},
        ]
    )
    assert found.ports == (
        PortFacts("dns", Protocol.UDP, 53),
        PortFacts("dns", Protocol.TCP, 53, 30053),
        PortFacts("", Protocol.SCTP, 3868),
        PortFacts("plain", Protocol.TCP, 8080),
    )
    assert str(found.port_id(found.ports[0])) == "default/web:dns/UDP"
    assert str(found.port_id(found.ports[2])) == "default/web/SCTP"


def test_services_share_their_ports() -> None:
    """Most clusters have few kinds of them; a long list is not kept for later."""
    spec = {"ports": [{"name": "web", "port": 81, "protocol": "TCP"}]}
    long = {"ports": [{"name": f"p{n}", "port": n, "protocol": "TCP"} for n in range(1, 9)]}
    assert facts(**spec).ports is facts(**spec).ports
    assert facts(**long).ports is not facts(**long).ports


def test_a_service_without_ports_is_there_and_has_none() -> None:
    assert facts(ports=[]).ports == ()
    assert facts(ports=None).ports == ()


def test_the_node_port_counts_whatever_the_type() -> None:
    assert facts(type="ClusterIP", ports=[{"port": 80, "nodePort": 30080}]).ports[0].node_port


@pytest.mark.parametrize(
    ("port", "reason"),
    [
        ({"port": 0}, "port 0 is not within 1 to 65535"),
        ({"port": -1}, "port -1 is not within 1 to 65535"),
        ({"port": 65536}, "port 65536 is not within 1 to 65535"),
        ({"port": 10**30}, f"port {10**30} is not within 1 to 65535"),
        ({"port": 80, "nodePort": 70000}, "nodePort 70000 is not within 1 to 65535"),
        ({"port": 80, "nodePort": -5}, "nodePort -5 is not within 1 to 65535"),
        ({"port": 80, "protocol": "tcp"}, "protocol 'tcp' is not TCP, UDP or SCTP"),
        (
            {"port": 80, "protocol": "Q" * 1_000_000},
            f"protocol '{'Q' * 80}' is not TCP, UDP or SCTP",
        ),
        ({"port": 80, "name": "a b"}, "name 'a b' is not a valid port name"),
        ({"port": 80, "name": 'x"; drop'}, "name 'x\"; drop' is not a valid port name"),
        ({"port": 80, "name": "n" * 1_000_000}, "the name has 1000000 characters"),
        (
            {"port": 81, "name": "http", "protocol": "TCP"},
            "another port has the name 'http' and protocol TCP",
        ),
    ],
)
def test_a_bad_port_is_left_out_and_the_others_stay(port: Json, reason: str) -> None:
    good = {"port": 80, "name": "http", "protocol": "TCP"}
    decoded = decode_service(service_object(ports=[good, port]), V4)
    assert decoded.facts is not None
    assert decoded.facts.ports == (PortFacts("http", Protocol.TCP, 80),)
    assert decoded.problems == (f"spec.ports[1] is left out: {reason}",)


# --- addresses from outside ---


@pytest.mark.parametrize(
    ("texts", "ipv4", "ipv6"),
    [
        (["203.0.113.9", "203.0.113.1"], ("203.0.113.9", "203.0.113.1"), ()),
        (["203.0.113.9", "2001:DB8::9"], ("203.0.113.9",), ("2001:db8::9",)),
        (["::ffff:203.0.113.9", "203.000.113.009"], ("203.0.113.9",), ()),
        (["", "  "], (), ()),
        (None, (), ()),
    ],
)
def test_external_ips_are_split_by_family_in_their_order(
    texts: list[str] | None, ipv4: tuple[str, ...], ipv6: tuple[str, ...]
) -> None:
    assert facts(V4, **DUAL, externalIPs=texts).external_ips == ipv4
    assert facts(V6, **DUAL, externalIPs=texts).external_ips == ipv6
    assert problems(externalIPs=texts) == ()


@pytest.mark.parametrize("text", ["203.0.113", "0.0.0.0", "::", "example.com", "203.0.113.1/32"])
def test_a_bad_external_ip_is_left_out_and_named(text: str) -> None:
    spec: Json = {"externalIPs": [text, "203.0.113.1"]}
    assert facts(**spec).external_ips == ("203.0.113.1",)
    assert problems(**spec) == (f"spec.externalIPs: {text!r} is not a usable IP address",)


@pytest.mark.parametrize(
    ("entry", "used"),
    [
        ({"ip": "203.0.113.5"}, True),
        ({"ip": "203.0.113.5", "ipMode": "VIP"}, True),
        ({"ip": "203.0.113.5", "ipMode": "Proxy"}, False),
        ({"ip": "203.0.113.5", "ipMode": "Else"}, False),
        ({"hostname": "lb.example.com"}, False),
        ({"ip": ""}, False),
        ({"ip": "2001:db8::5"}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("kind", ["LoadBalancer", "ClusterIP"])
def test_load_balancer_addresses_that_are_vips_count_whatever_the_type(
    entry: Json, used: bool, kind: str
) -> None:
    found = facts(type=kind, ingress=[entry])
    assert found.load_balancer_ips == (("203.0.113.5",) if used else ())


def test_an_address_that_is_not_used_for_its_mode_is_told() -> None:
    found = facts(ingress=[{"ip": "203.0.113.5", "ipMode": "Proxy"}])
    assert found.ignored == ("load balancer IP 203.0.113.5 is not used: its ipMode is Proxy",)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["203.0.113.129/025"], ("203.0.113.128/25",)),
        ([" 10.0.0.0/8 ", "\t192.0.2.0/24\n"], ("10.0.0.0/8", "192.0.2.0/24")),
        (["10.0.0.0/8", "10.0.0.0/8"], ("10.0.0.0/8", "10.0.0.0/8")),
        (["10.0.0.0/8", "0.0.0.0/0"], ()),
        (["10.0.0.0/8", "1.2.3.4/0"], ()),
        (["10.0.0.0/8", "::/0"], ("10.0.0.0/8",)),
        (["2001:db8::/32"], ()),
        ([""], ()),
        (None, ()),
    ],
)
def test_source_ranges(texts: list[str] | None, expected: tuple[str, ...]) -> None:
    assert facts(loadBalancerSourceRanges=texts).source_ranges == expected
    assert problems(loadBalancerSourceRanges=texts) == ()


@pytest.mark.parametrize("text", ["10.0.0.0", "10.0.0.0/33", "ten/8", "10.0.0.0/8/8"])
def test_a_bad_source_range_is_left_out_and_named(text: str) -> None:
    spec: Json = {"loadBalancerSourceRanges": [text, "10.0.0.0/8"]}
    assert facts(**spec).source_ranges == ("10.0.0.0/8",)
    assert problems(**spec) == (f"spec.loadBalancerSourceRanges: {text!r} is not a CIDR",)


# --- affinity, policies, health ---


@pytest.mark.parametrize(
    ("spec", "expected", "problem_count"),
    [
        ({}, 0, 0),
        ({"sessionAffinity": "None"}, 0, 0),
        ({"sessionAffinity": "None", "sessionAffinityConfig": {"clientIP": {}}}, 0, 0),
        ({"sessionAffinity": "ClientIP"}, 10800, 0),
        ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": None}}, 10800, 0),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}},
            },
            7,
            0,
        ),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}},
            },
            10800,
            1,
        ),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}},
            },
            10800,
            1,
        ),
    ],
)
def test_session_affinity(spec: Json, expected: int, problem_count: int) -> None:
    assert facts(**spec).affinity_seconds == expected
    assert len(problems(**spec)) == problem_count


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"type": "LoadBalancer", **LOCAL, "healthCheckNodePort": 1}, True),
        ({"type": "NodePort", **LOCAL}, True),
        ({"type": "ClusterIP", **LOCAL}, False),
        ({**LOCAL}, False),
        # Unparsed and of any family: upstream's own reading.
        ({"type": "ClusterIP", **LOCAL, "externalIPs": ["2001:db8::9"]}, True),
        ({"type": "ClusterIP", **LOCAL, "externalIPs": ["nonsense"]}, True),
        ({**LOCAL, "externalIPs": ["203.0.113.1"]}, True),
        ({"type": "NodePort", "externalTrafficPolicy": "Cluster"}, False),
        ({"type": "NodePort", "externalTrafficPolicy": None}, False),
    ],
)
def test_the_external_policy_counts_for_services_reachable_by_type(
    spec: Json, expected: bool
) -> None:
    assert facts(**spec).is_external_policy_local is expected


@pytest.mark.parametrize(
    ("policy", "expected"), [("Local", True), ("Cluster", False), (None, False)]
)
def test_the_internal_policy(policy: str | None, expected: bool) -> None:
    assert facts(internalTrafficPolicy=policy).is_internal_policy_local is expected


@pytest.mark.parametrize(
    ("spec", "expected", "is_problem"),
    [
        ({"type": "LoadBalancer", **LOCAL, "healthCheckNodePort": 32000}, 32000, False),
        ({"type": "LoadBalancer", **LOCAL}, 0, True),
        ({"type": "LoadBalancer", **LOCAL, "healthCheckNodePort": 99999}, 0, True),
        ({"type": "LoadBalancer", "healthCheckNodePort": 32000}, 0, False),
        ({"type": "NodePort", **LOCAL, "healthCheckNodePort": 32000}, 0, False),
    ],
)
def test_the_health_check_port_is_for_load_balancers_with_local_policy(
    spec: Json, expected: int, is_problem: bool
) -> None:
    assert facts(**spec).health_check_node_port == expected
    assert problems(**spec) == (("Service has no healthcheck nodeport",) if is_problem else ())


# --- wrong shapes ---


@pytest.mark.parametrize(
    "text",
    [
        '{"metadata": {"name": 5}}',
        '{"metadata": null}',
        '{"spec": {"ports": {}}}',
        '{"spec": {"ports": [null]}}',
        '{"spec": {"ports": [{"port": "80"}]}}',
        '{"spec": {"ports": [{"port": 80.5}]}}',
        '{"spec": {"ports": [{"port": true}]}}',
        '{"spec": {"ports": [{}]}}',
        '{"spec": {"ports": [{"port": ' + "9" * 5000 + "}]}}",
        '{"spec": {"clusterIP": ["10.0.0.1"]}}',
        '{"spec": {"externalIPs": [null]}}',
        '{"spec": {"sessionAffinityConfig": "ClientIP"}}',
        '{"status": {"loadBalancer": {"ingress": [{"ip": 1}]}}}',
        "[]",
        "null",
        '"Service"',
    ],
)
def test_a_wrong_shape_is_refused_while_decoding(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=objects.Service)


def test_fields_nobody_reads_may_have_any_shape() -> None:
    text = (
        '{"metadata": {"managedFields": 5}, "spec": {"selector": [1], "trafficDistribution": {}}}'
    )
    assert msgspec.json.decode(text, type=objects.Service) == objects.Service()
