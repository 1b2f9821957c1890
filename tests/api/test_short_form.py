"""Services for people who know no Kubernetes: what they become, and what is wrong with them."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.api import objects
from kubeproxy.api.decode import decode_service, decode_slice
from kubeproxy.api.manifest_text import Manifest, parse_manifest
from kubeproxy.api.short_form import ShortService
from kubeproxy.api.short_objects import Resolved, service_objects
from kubeproxy.errors import ObjectError
from kubeproxy.facts.endpoint import PortKey
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.policy import Algorithm, CheckKind
from kubeproxy.facts.service import ServiceFacts

ONE_LINE = (
    "services: {web: {listen: 198.51.100.1:80, to: [192.0.2.11:8080, 192.0.2.12:8080 weight 2],"
    " check: http /healthz}}"
)


def short(text: str, name: str = "web") -> ShortService:
    manifest = parse_manifest(text)
    assert not manifest.problems, manifest.problems
    return manifest.shorts[name].service


def service_facts(text: str, family: Family = Family.IPV4) -> list[ServiceFacts]:
    found = service_objects(short(text), {})
    decoded = [decode_service(o, family) for o in found.values() if isinstance(o, objects.Service)]
    assert not any(each.problems for each in decoded)
    return [each.facts for each in decoded if each.facts is not None]


def endpoints(text: str, resolved: Resolved | None = None) -> dict[str, int]:
    """The weight of each endpoint, as the slices have them."""
    weights: dict[str, int] = {}
    for found in service_objects(short(text), resolved or {}).values():
        if isinstance(found, objects.EndpointSlice):
            decoded = decode_slice(found, "node")
            assert not decoded.problems
            given_weights = dict(decoded.facts.weights)
            for _, listed in decoded.facts.endpoints:
                weights |= {e.text: given_weights.get(e.address, 1) for e in listed}
    return weights


def test_one_line_is_a_service() -> None:
    (facts,) = service_facts(ONE_LINE)
    assert facts.external_ips == ("198.51.100.1",) and facts.cluster_ip == ""
    assert [(port.port, port.protocol) for port in facts.ports] == [(80, Protocol.TCP)]
    assert facts.policy is not None and facts.policy.health_check is not None
    assert facts.policy.health_check.kind is CheckKind.HTTP
    assert facts.policy.health_check.path == "/healthz"
    assert endpoints(ONE_LINE) == {"192.0.2.11:8080": 1, "192.0.2.12:8080": 2}


def test_both_families_and_udp() -> None:
    text = """
services:
  web:
    listen: [198.51.100.1:53/udp, "[2001:db8::1]:53/UDP"]
    to: [192.0.2.11:5353, "[2001:db8::11]:5353 weight 0"]
    algorithm: round-robin
"""
    for family, address in ((Family.IPV4, "198.51.100.1"), (Family.IPV6, "2001:db8::1")):
        (facts,) = service_facts(text, family)
        assert facts.external_ips == (address,)
        assert [port.protocol for port in facts.ports] == [Protocol.UDP]
        assert facts.policy is not None and facts.policy.algorithm is Algorithm.ROUND_ROBIN
    assert endpoints(text) == {"192.0.2.11:5353": 1, "[2001:db8::11]:5353": 0}


def test_an_address_has_no_port_of_another_one() -> None:
    """Addresses with the same ports share a Service; the others are Services of their own."""
    text = """
services:
  web:
    listen: [198.51.100.1:80, 198.51.100.1:443, 198.51.100.2:443, 198.51.100.2:80, 198.51.100.3:80]
    to: 192.0.2.11:8080
"""
    places = {
        (facts.name.name, address, port.port)
        for facts in service_facts(text)
        for address in facts.external_ips
        for port in facts.ports
    }
    assert places == {
        ("web", "198.51.100.1", 80),
        ("web", "198.51.100.1", 443),
        ("web", "198.51.100.2", 80),
        ("web", "198.51.100.2", 443),
        ("web-2", "198.51.100.3", 80),
    }


def test_ports_of_services_and_slices_meet() -> None:
    text = "services: {web: {listen: [198.51.100.1:53, 198.51.100.1:53/udp], to: 192.0.2.1:5353}}"
    (facts,) = service_facts(text)
    slices = service_objects(short(text), {}).values()
    served = [
        key
        for found in slices
        if isinstance(found, objects.EndpointSlice)
        for key, _ in decode_slice(found, "node").facts.endpoints
    ]
    assert sorted(served) == sorted(PortKey(p.name, p.protocol) for p in facts.ports)
    assert len(served) == 2


def test_backends_may_have_different_ports() -> None:
    text = "services: {web: {listen: 198.51.100.1:80, to: [192.0.2.1:80, 192.0.2.1:81]}}"
    assert endpoints(text) == {"192.0.2.1:80": 1, "192.0.2.1:81": 1}


def test_a_host_name_is_all_its_addresses_of_the_families_that_are_listened_on() -> None:
    text = "services: {web: {listen: 198.51.100.1:80, to: [Servers.Example.:8080 weight 3]}}"
    assert short(text).host_names == {"servers.example"}
    known = {"servers.example": ("192.0.2.11", "192.0.2.12", "2001:db8::1")}
    assert endpoints(text, known) == {"192.0.2.11:8080": 3, "192.0.2.12:8080": 3}
    assert endpoints(text) == {}


def test_objects_and_short_form_stand_in_one_file() -> None:
    text = (
        f"{ONE_LINE}\n---\nkind: Service\nmetadata: {{name: api}}\nspec: {{clusterIP: 10.0.0.1}}\n"
    )
    manifest = parse_manifest(text)
    assert [key[2] for key in manifest.objects] == ["api"] and list(manifest.shorts) == ["web"]


def test_json_is_understood() -> None:
    text = '{"services": {"web": {"listen": "198.51.100.1:80", "to": ["192.0.2.1:80"]}}}'
    assert endpoints(text) == {"192.0.2.1:80": 1}


# --- what is wrong ---


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        (["listen: 198.51.100.1:80"], 2, "to: is missing or empty; write where they go"),
        (["to: [192.0.2.1:80]"], 2, "listen: is missing"),
        (["lisen: 198.51.100.1:80"], 3, "lisen: there is no such key; did you mean listen?"),
        (["color: red"], 3, "color: there is no such key; known are listen, to"),
        (["listen: 198.51.100.1", "to: 192.0.2.1:80"], 3, "write address and port"),
        (["listen: :80", "to: 192.0.2.1:80"], 3, "'' is no address"),
        (["listen: web.example:80", "to: 192.0.2.1:80"], 3, "'web.example' is no address"),
        (["listen: 80", "to: 192.0.2.1:80"], 3, "80 is no text"),
        (["listen: 198.51.100.1:0", "to: 192.0.2.1:80"], 3, "port '0' is not a number within"),
        (["listen: 198.51.100.1:80/icmp", "to: 192.0.2.1:80"], 3, "'icmp' is none of tcp, udp"),
        (["listen: 127.0.0.1:80", "to: 192.0.2.1:80"], 3, "is reached from its own host only"),
        (["listen: 192.0.2.1:80", "to: 169.254.1.1:80"], 4, "is a link-local address"),
        (["listen: 0.0.0.0:80", "to: 192.0.2.1:80"], 3, "is not the address of one host"),
        (["listen: 2001:db8::1", "to: 192.0.2.1:80"], 3, 'write "[2001:db8::1]:PORT", in quotes'),
        (["listen: [[2001, 80]]", "to: 192.0.2.1:80"], 3, "an IPv6 address needs quotes"),
        (["listen: 198.51.100.1:80", "to:", "  - 192.0.2.1:80", "  - 192.0.2.2"], 6, "to[1]"),
        (["listen: 198.51.100.1:80", "to: 192.0.2.300:80"], 4, "no address and no host name"),
        (["listen: 198.51.100.1:80", "to: 192.0.2.1:80 weight"], 4, "ADDRESS:PORT weight NUMBER"),
        (["listen: 198.51.100.1:80", "to: 192.0.2.1:80 weight 257"], 4, "within 0 to 256"),
        (["listen: 198.51.100.1:80", "to: [192.0.2.1:80, 192.0.2.1:80]"], 4, "is there twice"),
        (
            ["listen: 198.51.100.1:80", "to: [192.0.2.1:80, 192.0.2.1:80 weight 2]"],
            4,
            "is there twice; write it once",
        ),
        (
            ["listen: 198.51.100.1:80", "to: [192.0.2.1:80, 192.0.2.1:81 weight 2]"],
            4,
            "a host has one for all its ports",
        ),
        (["listen: 198.51.100.1:80", 'to: [192.0.2.1:80, "[::2]:80"]'], 4, "IPv6 is never used"),
        (
            ['listen: [198.51.100.1:80, "[2001:db8::1]:80"]', "to: 192.0.2.1:80"],
            3,
            "IPv6 has nowhere to go",
        ),
        (["listen: 198.51.100.1:80", "to: 192.0.2.1:80", "check: ping"], 5, "check: 'ping'"),
        (["listen: 198.51.100.1:80", "to: 192.0.2.1:80", "check: http"], 5, "http /healthz"),
        (["listen: 198.51.100.1:80", "to: 192.0.2.1:80", "algorithm: best"], 5, "'best' is none"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_the_remedy(
    lines: list[str], line: int, reason: str
) -> None:
    text = "".join(f"    {each}\n" for each in lines)
    manifest = parse_manifest(
        f"services:\n  web:\n{text}  ok:\n    {{listen: 198.51.100.9:80, to: 192.0.2.1:80}}\n"
    )
    (problem,) = manifest.problems
    assert problem.name == "default/web"
    assert reason in problem.reason
    assert manifest.lines[problem] == line
    assert list(manifest.shorts) == ["ok"], "the others stay usable"


def test_two_services_cannot_listen_in_one_place() -> None:
    text = """
services:
  a: {listen: 198.51.100.1:80, to: 192.0.2.1:80}
  b: {listen: 198.51.100.1:80, to: 192.0.2.2:80}
"""
    manifest = parse_manifest(text)
    (problem,) = manifest.problems
    assert "198.51.100.1:80 is that of a already" in problem.reason
    assert manifest.lines[problem] == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("services: []", "line 1: services: is no mapping"),
        ("services:", "line 1: services: is no mapping"),
        ("services: {}\nserver: {}", "line 2: server: there is no such key"),
        ("services:\n  a: {}\n  a: {}", 'line 3: key "a" already set in map; remove one'),
    ],
)
def test_a_document_that_is_wrong_itself_is_no_manifest(text: str, reason: str) -> None:
    with pytest.raises(ObjectError) as caught:
        parse_manifest(text)
    assert reason in str(caught.value)


def test_a_mistake_in_an_object_has_a_line_too() -> None:
    text = "kind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.0.0.1\n  ports:\n"
    manifest = parse_manifest(f"kind: Node\nmetadata: {{name: n1}}\n---\n{text}  - port: a\n")
    (problem,) = manifest.problems
    assert manifest.lines[problem] == 9


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["web", "a-b", "", "X", "9"]),
        _VALUES
        | st.fixed_dictionaries(
            {
                "listen": _VALUES | st.just("198.51.100.1:80"),
                "to": _VALUES | st.lists(st.text(max_size=30) | st.just("a.example:80")),
            },
            optional={"check": _VALUES, "algorithm": _VALUES},
        ),
        max_size=3,
    )
)
def test_whatever_stands_there_is_understood_or_named(services: dict[str, object]) -> None:
    try:
        manifest = parse_manifest(yaml.safe_dump({"services": services}))
    except ObjectError:
        manifest = Manifest()
    for found in manifest.shorts.values():
        for item in service_objects(found.service, {}).values():
            if isinstance(item, objects.Service):
                assert not any(decode_service(item, family).problems for family in Family)
            elif isinstance(item, objects.EndpointSlice):
                assert not decode_slice(item, "node").problems
