"""What counts as a manifest: formats, kinds, defaults and clear words about what is missing."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.costs import megabytes, seconds_for
from tests.support.effort import examples

from kubeproxy.api import objects
from kubeproxy.api.decode import decode_service, decode_slice
from kubeproxy.api.manifest_text import Key, parse_manifest
from kubeproxy.api.source import Kind
from kubeproxy.errors import ObjectError
from kubeproxy.facts.endpoint import PortKey
from kubeproxy.facts.ids import Family

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
"""
SLICE = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
"""
WEB: Key = (Kind.SERVICE, "shop", "web")


def keys(text: str) -> list[Key]:
    manifest = parse_manifest(text)
    assert not manifest.problems
    return list(manifest.objects)


def problem_of(text: str) -> str:
    (problem,) = parse_manifest(text).problems
    return f"{problem.kind.value} {problem.name}: {problem.reason}"


def service(name: str = "web", **more: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.10"},
        **more,
    }


def test_yaml_with_several_documents() -> None:
    text = f"# a comment\n---\n{SERVICE}---\n---\n{SLICE}---\n"
    assert keys(text) == [WEB, (Kind.ENDPOINT_SLICE, "shop", "web-1")]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(service()),
        "\n  " + json.dumps([service()]),
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [service()]}),
        json.dumps(service()) + "\n---\n" + json.dumps(service("api")),
        "{kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.1}}",
    ],
    ids=["object", "array", "list", "documents", "flow style"],
)
def test_json_and_yaml_that_looks_like_it(text: str) -> None:
    assert WEB in keys(text)


def test_items_of_a_list_get_its_kind() -> None:
    item = {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.96.0.1"}}
    text = json.dumps({"apiVersion": "v1", "kind": "ServiceList", "items": [item]})
    assert keys(text) == [WEB]


def test_lists_may_hold_lists_and_be_empty() -> None:
    inner = {"kind": "List", "items": [service()]}
    assert keys(json.dumps({"kind": "List", "items": [inner, {"kind": "ServiceList"}]})) == [WEB]
    assert keys("kind: List\nitems:\n") == []


def test_objects_of_a_namespaced_kind_are_in_default_unless_they_say_otherwise() -> None:
    text = (SERVICE + "---" + SLICE).replace(", namespace: shop", "")
    text += "---\n{apiVersion: v1, kind: Node, metadata: {name: worker-a}}"
    assert keys(text) == [
        (Kind.SERVICE, "default", "web"),
        (Kind.ENDPOINT_SLICE, "default", "web-1"),
        (Kind.NODE, "", "worker-a"),
    ]
    found = parse_manifest(text).objects[Kind.SERVICE, "default", "web"]
    assert found.metadata.namespace == "default"


@pytest.mark.parametrize(
    "foreign",
    [
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}}",
        "{apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: x}}",
        "{apiVersion: v1, kind: Endpoints, metadata: {name: x}}",
        "{apiVersion: v1, kind: PodList, items: [{metadata: {name: x}}]}",
    ],
)
def test_other_kinds_in_the_same_file_are_passed_over(foreign: str) -> None:
    assert keys(f"{SERVICE}---\n{foreign}\n") == [WEB]


def test_a_service_without_a_cluster_ip_is_told_what_to_do() -> None:
    text = problem_of(SERVICE.replace("clusterIP: 10.96.0.10, ", ""))
    assert text.startswith("Service shop/web: spec.clusterIP is missing")
    assert "write the address" in text


@pytest.mark.parametrize("spec", ["{clusterIP: None}", "{type: ExternalName, externalName: a.b}"])
def test_a_service_that_needs_no_address_is_fine_without(spec: str) -> None:
    text = f"{{kind: Service, metadata: {{name: web, namespace: shop}}, spec: {spec}}}"
    assert keys(text) == [WEB]


def test_a_slice_without_its_label_is_told_what_to_do() -> None:
    text = problem_of(SLICE.replace("kubernetes.io/service-name: web", "app: web"))
    assert text.startswith("EndpointSlice shop/web-1: label kubernetes.io/service-name is missing")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{kind: Service, spec: {clusterIP: 10.96.0.1}}", "metadata.name is missing"),
        (SERVICE.replace("port: 80", "port: eighty"), "Expected `int`, got `str`"),
        (SERVICE.replace("port: 80", "name: x"), "missing required field `port`"),
        (SERVICE.replace("name: web,", "name: 5,"), "Expected `str`, got `int`"),
        (f"{SERVICE}---{SERVICE}", "the file holds another object of this name"),
    ],
)
def test_a_bad_object_is_named_and_the_others_are_used(text: str, reason: str) -> None:
    manifest = parse_manifest(f"{text}\n---\n{json.dumps(service('good'))}")
    assert (Kind.SERVICE, "shop", "good") in manifest.objects
    (problem,) = manifest.problems
    assert reason in problem.reason


def test_times_stay_text() -> None:
    text = SLICE.replace(
        "labels:",
        "annotations: {endpoints.kubernetes.io/last-change-trigger-time: 2026-01-01T00:00:00Z},"
        " labels:",
    )
    (found,) = parse_manifest(text).objects.values()
    assert isinstance(found, objects.EndpointSlice) and found.metadata.annotations is not None
    assert found.metadata.annotations.trigger_time == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("# only a comment\n---\n", "the file is empty"),
        ("{", "neither JSON"),
        ("a: [", "not YAML"),
        ("just words", "expected an object with a kind"),
        ("kind: 5: 6", "not YAML"),
        ("[1, 2]", "expected an object with a kind"),
        ("metadata: {name: web}", "expected an object with a kind"),
        ("{kind: List, items: 5}", "items of a List are not a list"),
        ('{"kind": "List", "items": {"a": 1}}', "items of a List are not a list"),
        ("kind: Service\nx: !!int word", "not YAML"),
        ("kind: Service\nx: !!bool word", "not YAML"),
        ('{"kind": "List", "items": ["\\ud800"]}', "expected an object with a kind"),
        ('{"kind": "List", "items": [1e999]}', "not JSON"),
        ('{"kind": "List", "items": [{"kind": "Service"}', "neither JSON"),
        ("&a [*a]", "contains itself"),
        ("[" * 20_000, "neither JSON: Input data was truncated"),
        ("- " * 20_000, "exceeded max depth of 100"),
        ('{"a":' * 20_000 + "1" + "}" * 20_000, "expected an object with a kind"),
        ("\x00", "not YAML"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, reason: str) -> None:
    with pytest.raises(ObjectError) as caught:
        parse_manifest(text)
    assert reason in str(caught.value)


# --- what an API server would fill in ---


def only_object(text: str) -> objects.Service | objects.EndpointSlice:
    manifest = parse_manifest(text)
    assert not manifest.problems
    (found,) = manifest.objects.values()
    assert isinstance(found, objects.Service | objects.EndpointSlice)
    return found


def frontends(spec: str) -> list[str | None]:
    """The cluster IPs that a Service has in each family."""
    found = only_object(f"{{kind: Service, metadata: {{name: web}}, spec: {spec}}}")
    assert isinstance(found, objects.Service)
    facts = [decode_service(found, family).facts for family in Family]
    return [None if one is None else one.cluster_ip for one in facts]


def test_ports_without_names_meet() -> None:
    """The simplest YAML there is: an API server sets both names to the empty text."""
    service = only_object(SERVICE)
    ports = only_object(f"{SLICE}ports: [{{port: 8080}}]\nendpoints: [{{addresses: [10.0.0.1]}}]\n")
    assert isinstance(service, objects.Service) and isinstance(ports, objects.EndpointSlice)
    facts = decode_service(service, Family.IPV4).facts
    decoded = decode_slice(ports, "n1")
    assert facts is not None and not decoded.problems
    assert [PortKey(port.name, port.protocol) for port in facts.ports] == [
        key for key, _ in decoded.facts.endpoints
    ]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{clusterIP: 10.96.0.1}", ["10.96.0.1", None]),
        ("{clusterIP: 10.96.0.1, ipFamilies: [IPv4]}", ["10.96.0.1", None]),
        ("{clusterIP: 'fd00::1', ipFamilies: [IPv6]}", [None, "fd00::1"]),
        ("{clusterIPs: [10.96.0.1]}", ["10.96.0.1", None]),
        ("{clusterIPs: [10.96.0.1, 'fd00::1']}", ["10.96.0.1", "fd00::1"]),
        ("{clusterIP: 'fd00::1', clusterIPs: ['fd00::1', 10.96.0.1]}", ["10.96.0.1", "fd00::1"]),
        ("{clusterIP: 10.96.0.1, ipFamilies: [IPv4, IPv6]}", ["10.96.0.1", None]),
        ("{clusterIP: None}", [None, None]),
    ],
)
def test_cluster_ips_may_be_written_in_any_way(spec: str, expected: list[str | None]) -> None:
    assert frontends(spec) == expected


def test_cluster_ips_that_contradict_are_refused() -> None:
    text = SERVICE.replace("10.96.0.10,", "10.96.0.10, clusterIPs: [10.96.0.11],")
    assert "spec.clusterIP is not the first of spec.clusterIPs" in problem_of(text)


# --- what has no effect ---


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (SERVICE.replace("ports:", "clusterIp: x, ports:"), "spec.clusterIp"),
        (SERVICE.replace("port: 80", "port: 80, prot: UDP"), "spec.ports[].prot"),
        (SERVICE.replace("name: web", "name: web, label: {}"), "metadata.label"),
        (SERVICE + "specs: {}", "specs"),
        (SLICE + "endpoints: [{addresses: [], condition: {}}]", "endpoints[].condition"),
        ("{kind: Node, metadata: {name: n1}, spec: {podcidr: x}}", "spec.podcidr"),
    ],
)
def test_unknown_fields_are_named(text: str, note: str) -> None:
    (found,) = parse_manifest(text).notes
    assert found.endswith(f'unknown field "{note}" is ignored')


def test_fields_that_the_proxy_does_not_read_are_known() -> None:
    """What `kubectl get -o yaml` prints has no unknown field."""
    text = """
kind: Service
apiVersion: v1
metadata: {name: a, uid: u, creationTimestamp: 2026-01-01T00:00:00Z, annotations: {x: y},
  labels: {a: b}, managedFields: [{fieldsV1: {"f:x": {}}}], generation: 1, ownerReferences: []}
spec: {clusterIP: 10.0.0.1, selector: {a: b}, ipFamilyPolicy: SingleStack, type: ClusterIP,
  ports: [{port: 1, targetPort: http, appProtocol: x, nodePort: 30000}],
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}, trafficDistribution: PreferClose}
status: {loadBalancer: {ingress: [{ip: 1.2.3.4, ipMode: VIP, ports: []}]}, conditions: []}
"""
    assert parse_manifest(text).notes == ()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("{apiVersion: apps/v1, kind: Deployment}", "kind Deployment of apps/v1 is ignored"),
        (
            "{apiVersion: v1, kind: Endpoints}",
            "kind Endpoints of v1 is ignored; write an EndpointSlice instead",
        ),
        ("{kind: Thing}", "kind Thing is ignored"),
    ],
)
def test_ignored_kinds_are_named_once(text: str, note: str) -> None:
    assert parse_manifest(f"{text}\n---\n{text}\n---\n{SERVICE}").notes == (note,)


def test_few_of_many_unknown_fields_are_named() -> None:
    text = json.dumps(service() | {f"x{number}": 1 for number in range(1_000)})
    assert len(parse_manifest(text).notes) == 20


def test_a_field_that_nests_too_deeply_costs_its_object_nothing() -> None:
    text = json.dumps(service(x="HOLE")).replace('"HOLE"', "[" * 5_000 + "]" * 5_000)
    manifest = parse_manifest(text)
    assert list(manifest.objects) == [WEB]
    assert "a field is nested too deeply and is ignored" in manifest.notes


# --- more than there seems to be ---


def bomb(levels: int) -> str:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("levels", [6, 9, 30])
def test_a_bomb_is_refused_at_once(levels: int) -> None:
    def refuse() -> None:
        with pytest.raises(ObjectError, match="document contains excessive aliasing"):
            parse_manifest(bomb(levels))

    assert seconds_for(refuse) < megabytes(200)


@pytest.mark.parametrize(
    "text",
    [
        "[{list}]",
        "{{kind: {list}}}",
        "{{kind: Service, apiVersion: {list}}}",
        "{{kind: Service, metadata: {list}}}",
        "{{kind: Service, metadata: {{name: {list}, namespace: {list}}}}}",
        "{{kind: List, items: {list}}}",
        "{{kind: Service, metadata: {{name: x}}, spec: {{clusterIP: {list}, ports: {list}}}}}",
        "{{kind: Service, metadata: {{name: x}}, {list}: x}}",
    ],
)
def test_messages_stay_short_whatever_is_in_them(text: str) -> None:
    long = f"[{'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx, ' * 20_000}]"
    try:
        manifest = parse_manifest(text.format(list=long))
    except ObjectError as error:
        messages = [str(error)]
    else:
        messages = [problem.reason + problem.name for problem in manifest.problems]
        messages += manifest.notes
    assert messages
    assert all(len(message) < 500 for message in messages)


def test_an_object_by_alias_is_one_object() -> None:
    text = f"kind: List\nitems:\n- &a {json.dumps(service())}\n" + "- *a\n" * 5
    manifest = parse_manifest(text)
    assert list(manifest.objects) == [WEB]
    assert len(manifest.problems) == 1


WORDS = (
    *["kind: ", "Service", "List", "items:", "\n", "  ", "- ", "metadata: {name: x}", "spec:"],
    *["---\n", "{", "}", "[", "]", ",", '"', ": ", "&a ", "*a", "!!int ", "!!set {a, b}", "? "],
    *["!!timestamp x", "!!binary aGk=", "clusterIP: 10.0.0.1", "5", ".nan", "null", "<<: "]
)  # fmt: skip


@given(text=st.lists(st.sampled_from(WORDS), max_size=14).map("".join) | st.text(max_size=30))
@settings(max_examples=examples(300), database=None,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ObjectError):
        parse_manifest(text)
